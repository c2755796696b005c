"""When pipelines run: one Airflow DAG for each declared pipeline, wiring only.

A package so that Airflow finds the timetable of `dags.schedule` by its entry point; also Airflow's DAGs folder.
"""
