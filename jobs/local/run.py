"""`penstock up` and `penstock down`."""

from jobs.command import Job
from jobs.local import airflow_server, services
from jobs.settings import state_folder


def up(job: Job) -> None:
    """Starts the embedded services and prints where everything is."""
    state = state_folder().resolve()
    endpoints = services.start(state, [name.strip() for name in job.options.only.split(",") if name.strip()])
    job.report["endpoints"] = endpoints
    if not job.options.json:
        print(addresses(endpoints))
        print(f"logs      {state / 'logs'}\nstop with `make down`; the data stay in {state}")


def down(job: Job) -> None:
    """Stops what `up` started."""
    job.report["stopped"] = services.stop(state_folder())


def addresses(endpoints: dict[str, str]) -> str:
    """The addresses for a person to open, with the user and password of Airflow's page."""
    lines = []
    if "AIRFLOW_URL" in endpoints:
        secret = airflow_server.password_in(endpoints["AIRFLOW_PASSWORD_FILE"])
        lines.append(f"airflow   {endpoints['AIRFLOW_URL']}   user {airflow_server.USER}, password {secret}")
    if "MLFLOW_TRACKING_URI" in endpoints:
        lines.append(f"mlflow    {endpoints['MLFLOW_TRACKING_URI']}")
    if "KAFKA_BOOTSTRAP_SERVERS" in endpoints:
        lines.append(f"kafka     {endpoints['KAFKA_BOOTSTRAP_SERVERS']}")
    lines.append(f"lake      {endpoints['PENSTOCK_LAKE']}")
    return "\n".join(lines)
