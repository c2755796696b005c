"""Fixtures that several test files share, by the file that defines them."""

pytest_plugins = ["fixtures_postgres", "fixtures_secure", "fixtures_services", "fixtures_spark", "fixtures_topic"]
