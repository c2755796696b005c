# Each target sets up what it needs first: Python 3.11, Java 17 or 21 and make are all a machine has to have.

.DEFAULT_GOAL := help
BIN := .venv/bin
UV := .penstock/bootstrap/bin/uv

.PHONY: help setup setup-services lock up down demo check format test test-demo test-long bench-ingest bench-features clean

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-14s %s\n", $$1, $$2 }' Makefile

setup: ## the environment from its locks, and the JVM's jars: minutes once, then nothing
	@bin/setup

setup-services:
	@bin/setup --services

lock: setup ## compile requirements.lock again from pyproject.toml, with hashes and no index named
	$(UV) pip compile pyproject.toml --quiet --all-extras --group dev --python-version 3.11 --generate-hashes \
		--no-emit-index-url --no-emit-find-links --no-header -o requirements.lock

up: setup-services ## start Kafka, MLflow and Airflow on this machine, and leave them running
	@$(BIN)/penstock up

down: setup ## stop what `make up` started, and nothing else
	@$(BIN)/penstock down

demo: setup-services ## from real flights in Kafka to a promoted model, through Airflow
	@$(BIN)/penstock demo

check: setup ## lint, formatting and types; rewrites nothing
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy

format: setup ## rewrite the files as `make check` wants them
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

test: setup ## the tests, with real services that they start themselves
	$(BIN)/pytest -m "not long and not demo"

test-demo: setup ## the path of the demo, each way of running it through a real Airflow: five minutes
	$(BIN)/pytest -m demo

test-long: setup ## the tests that take minutes each: killed at every step, at random moments, and racing
	$(BIN)/pytest -m long

bench-ingest: setup-services ## what the ingest promises, measured on this machine: half an hour on two quiet cores
	$(BIN)/python -m benchmarks.ingest

bench-features: setup ## what the features promise, measured on this machine: half an hour on two quiet cores
	$(BIN)/python -m benchmarks.features

clean: ## stop the services, then delete the environment and all local data (the cache of jars stays)
	@if [ -x $(BIN)/penstock ]; then $(BIN)/penstock down; fi
	rm -rf .venv .penstock .pytest_cache .mypy_cache .ruff_cache
