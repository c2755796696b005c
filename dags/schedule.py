"""The schedule of a pipeline: its whole UTC days, from its first to its last.

Airflow's own `end_date` ends more than the schedule: a run by hand that is dated after it, as every trigger from the page
is, "succeeds" without running one task; and so does one dated before `start_date`. Here the two days bound what the
scheduler makes by itself, nothing else. The timetable is known to Airflow by the entry point `airflow.plugins` of this
project.
"""

from datetime import UTC, date, datetime
from typing import Any

from airflow.plugins_manager import AirflowPlugin
from airflow.timetables.base import DagRunInfo, DataInterval, TimeRestriction
from airflow.timetables.interval import CronDataIntervalTimetable
from pendulum import instance


class PipelineDays(CronDataIntervalTimetable):  # type: ignore[misc]
    """One data interval for each UTC day; the scheduler makes those of `first_day` to `last_day`, both included."""

    def __init__(self, *, first_day: date, last_day: date | None) -> None:
        super().__init__("0 0 * * *", timezone="UTC")
        self.first_day = first_day
        self.last_day = last_day
        self.description = f"Each UTC day {self._span}"

    @property
    def _span(self) -> str:
        return f"from {self.first_day} to {self.last_day}" if self.last_day else f"since {self.first_day}"

    @property
    def summary(self) -> str:
        """What the list of DAGs shows."""
        return f"daily {self._span}"

    def next_dagrun_info(
        self, *, last_automated_data_interval: DataInterval | None, restriction: TimeRestriction
    ) -> DagRunInfo | None:
        """The next day. A backfill names its own last day in `restriction`, and may lie outside the schedule."""
        if restriction.latest is None:
            first = _midnight(self.first_day)
            restriction = TimeRestriction(
                earliest=max(first, restriction.earliest or first),
                latest=_midnight(self.last_day) if self.last_day else None,
                catchup=restriction.catchup,
            )
        return super().next_dagrun_info(last_automated_data_interval=last_automated_data_interval, restriction=restriction)

    def serialize(self) -> dict[str, Any]:
        """What Airflow keeps in its database."""
        return {"first_day": self.first_day.isoformat(), "last_day": self.last_day.isoformat() if self.last_day else None}

    @classmethod
    def deserialize(cls, data: dict[str, Any]) -> "PipelineDays":
        """The timetable from what `serialize` gave."""
        last = data["last_day"]
        return cls(first_day=date.fromisoformat(data["first_day"]), last_day=date.fromisoformat(last) if last else None)


class PenstockPlugin(AirflowPlugin):  # type: ignore[misc]
    """Tells Airflow's processes, which never read the DAG file, about the timetable."""

    name = "penstock"
    timetables = [PipelineDays]


def _midnight(day: date) -> Any:
    return instance(datetime(day.year, day.month, day.day, tzinfo=UTC))
