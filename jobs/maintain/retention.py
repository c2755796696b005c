"""The declared retention against the longest run that the reports tell of.

A run reads the version that it pinned at its start, and an ingest writes files that nobody knows until its commit: both live on
files that vacuum would take once they are older than the retention. How long a run lasts that is on now, nothing says.
"""

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from jobs import lake, store
from jobs.errors import UsageError

SAFETY = 2
"""The retention is at least so many times the longest run."""

_NEWEST = 300
"""Reports of each command that are looked at."""

_READ_NOTHING = ("maintain", "erase", "run")
"""Commands that hold no version of a table for long: a commit that lost its files is refused. The stages of a run have reports of
their own."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Longest:
    """The longest run, and where its report lies."""

    seconds: float = 0.0
    report: str = ""


def longest(subjects: Iterable[str]) -> Longest:
    """The longest run of the sources and pipelines, as far as their reports are kept."""
    found = Longest()
    for subject in subjects:
        for name, report in _reports(subject):
            seconds = _seconds(report)
            if seconds > found.seconds:
                found = Longest(seconds=seconds, report=f"reports/{subject}/{name}")
    return found


def require(name: str, retention: timedelta, run: Longest) -> None:
    """Raise UsageError where the retention is too short for such a run."""
    if retention.total_seconds() >= SAFETY * run.seconds:
        return
    days = -(-SAFETY * run.seconds // 86400)
    raise UsageError(
        f"the retention of {name} is {retention.days} days, and the longest run took {run.seconds / 3600:.1f} hours "
        f"({run.report}): it must be at least {SAFETY} times the longest run, or files that a run still reads would go. "
        f"Declare retention=days({days:.0f}) or more, or delete that report if such a run can't come again. Nothing was changed."
    )


def _reports(subject: str) -> Iterator[tuple[str, dict[str, Any]]]:
    folder = lake.uri("reports", subject)
    by_command: dict[str, list[str]] = defaultdict(list)
    for one in store.files(folder):
        by_command[one.path.split("/")[0]].append(one.path)
    for command, names in by_command.items():
        if command in _READ_NOTHING:
            continue
        for name in sorted(names)[-_NEWEST:]:
            try:
                report = json.loads(store.read(folder, name) or b"{}")
            except ValueError:
                continue  # Half a report, of a run that was killed.
            if isinstance(report, dict):
                yield name, report


def _seconds(report: dict[str, Any]) -> float:
    if report.get("continuous"):
        # A service's life says nothing: each of its batches is a run of its own.
        return max((float(each["longest_batch_seconds"]) for each in report.get("sources", {}).values()), default=0.0)
    return float(report.get("seconds") or 0.0)
