"""What Penstock's ingest takes, against Spark's own source and a bare script: `make bench-ingest`."""
