"""What a person sees before and after starting a run by hand: the form's fields, and the page's text."""

from datetime import timedelta

from airflow.sdk import Param

from pipelines.declare import Pipeline

TRAIN = {
    "due": "when due: if the declared number of days has passed since the last model",
    "always": "always: train a candidate and let the rule decide about it",
    "never": "never: only ingest, features and scores",
}


def params(pipeline: Pipeline) -> dict[str, Param]:
    """The form's fields. Which days they mean is decided by `penstock resolve`, the first task."""
    return {
        "from": Param(
            None,
            type=["null", "string"],
            format="date",
            title="First day",
            description=f"The first UTC day to run, for example {pipeline.first_day}. Give both days, or neither: "
            "then it is the day of the run's data interval, for a run by hand the last one that is over.",
        ),
        "to": Param(
            None,
            type=["null", "string"],
            format="date",
            title="Last day",
            description="The last UTC day, included. It has to be over. All days of a range are computed at once, which costs "
            "far less than one by one.",
        ),
        "train": Param(
            "due",
            type="string",
            enum=list(TRAIN),
            values_display=TRAIN,
            title="Train and promote",
            description="Whether a candidate is trained at the end of the last day, and its promotion decided. "
            "Runs of a backfill never do either.",
        ),
    }


def page(pipeline: Pipeline) -> str:
    """The text on the DAG's page, in Markdown."""
    sources = "\n".join(f"| `{source.name}` | `{source.topic}` |" for source in pipeline.sources)
    lateness = pipeline.lateness / timedelta(hours=1)
    return f"""{pipeline.description}

A run is about one UTC day, or by hand about a range of them. It waits until {lateness:g} h after the end of its last day, reads
what is new in Kafka, computes features and examples, trains and promotes when that is due (every
{pipeline.training.every.days} days), and scores the coming day. Any run may be repeated: the result is the same, and other
days are not touched.

| source | topic |
| --- | --- |
{sources}

**Past days**: *Trigger* with two dates computes them in one go. A *backfill* makes one run for each day; it never trains
and never promotes.

**When a task fails**, its log ends with the job's own words. Exit codes 64 (wrong arguments), 65 (the data breaks a rule)
and 70 (a bug) fail at once, since a retry can't help; a service that was away, a day still open or a killed process is
tried again.
"""
