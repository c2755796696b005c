"""One DAG for each declared pipeline: wiring, and nothing else. `broken_pipelines.py` tells of those that can't be loaded.

`penstock resolve` decides what a run is about, once, for scheduled, manual and backfill runs; every later task takes its
days from that task's report.
"""

import sys
import warnings
from datetime import UTC, datetime, timedelta
from pathlib import Path

# Airflow puts this folder on the path; the packages lie beside it, unless they are installed.
if (root := str(Path(__file__).resolve().parent.parent)) not in sys.path:
    sys.path.append(root)

from airflow.providers.standard.sensors.date_time import DateTimeSensorAsync
from airflow.sdk import DAG, get_parsing_context

import pipelines
from dags.form import page, params
from dags.job_operator import ExitCodePolicy, JobOperator
from dags.schedule import PipelineDays
from pipelines.declare import Pipeline

# Two pipelines may read one source, and their runs of a day have the same id: the name tells their batches apart.
RUN = ("--run-id", "{{ dag_run.dag_id }}/{{ run_id }}")


def resolved(key: str) -> str:
    """A template for one value of the first task's report."""
    return f"{{{{ ti.xcom_pull(task_ids='resolve')['{key}'] }}}}"


DAYS = ("--from", resolved("first"), "--to", resolved("last"))


def build(pipeline: Pipeline) -> DAG:
    """The DAG of a pipeline."""
    with DAG(
        dag_id=pipeline.name,
        description=pipeline.description,
        doc_md=page(pipeline),
        schedule=PipelineDays(first_day=pipeline.first_day, last_day=pipeline.last_day),
        # The schedule begins with the timetable's first day. Runs dated before this would have no tasks, so it is far off.
        start_date=datetime(1970, 1, 1, tzinfo=UTC),
        catchup=True,
        max_active_runs=1,
        params=params(pipeline),
        tags=["penstock", *pipeline.tags],
        default_args={
            "owner": pipeline.owner,
            "retries": 3,
            # Airflow waits once to twice this, doubled with each try: 20 to 40 s after the first.
            "retry_delay": timedelta(seconds=20),
            "retry_exponential_backoff": 2.0,
            "max_retry_delay": timedelta(minutes=10),
            "retry_policy": ExitCodePolicy(),
        },
    ) as dag:
        name = pipeline.name
        resolve = JobOperator(
            task_id="resolve",
            arguments=(
                *("resolve", name, *RUN),
                *("--from", "{{ params['from'] or '' }}", "--to", "{{ params['to'] or '' }}"),
                *("--run-start", "{{ dag_run.data_interval_start or '' }}", "--run-end", "{{ dag_run.data_interval_end or '' }}"),
                *("--run-type", "{{ dag_run.run_type.value }}", "--train", "{{ params['train'] }}"),
            ),
        )
        # Deferred by a worker, for a second: the triggerer can't read the report that the time comes from (3.3.2 hangs).
        wait = DateTimeSensorAsync(task_id="wait", target_time=resolved("closes_at"), end_from_trigger=True)
        ingest = JobOperator(task_id="ingest", arguments=("ingest", name, *RUN))
        features = JobOperator(task_id="features", arguments=("features", name, *DAYS, *RUN))
        train = JobOperator(task_id="train", arguments=("train", name, *DAYS, "--when", resolved("train"), *RUN))
        promote = JobOperator(task_id="promote", arguments=("promote", name, *DAYS, "--when", resolved("promote"), *RUN))
        score = JobOperator(task_id="score", arguments=("score", name, *DAYS, *RUN))
        resolve >> wait >> ingest >> features >> train >> promote
        # Scores don't wait for a decision: they take the champion as it stands.
        features >> score
    return dag


# A task's own process reads this file again, and asks for its DAG alone.
asked = get_parsing_context().dag_id
for name in pipelines.names() if asked is None else [asked]:
    try:
        globals()[name] = build(pipelines.load(name))
    except Exception as wrong:
        # Raised here, it would take the DAGs of all pipelines away.
        if asked is not None:
            raise
        warnings.warn(f"pipeline {name} has no DAG: {wrong}", stacklevel=1)
