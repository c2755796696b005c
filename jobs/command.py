"""What a stage tells the command line about itself.

`jobs.cli` looks for `COMMANDS` in each package of `jobs`: a new stage is one new package, and nothing else changes.
This module and each package's `__init__` import nothing heavy, since every call of `penstock` reads them all.
"""

import argparse
import importlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

from jobs.interval import Interval
from pipelines.declare import Pipeline, Source


@dataclass(kw_only=True, slots=True)
class Job:
    """One call of a command, after its arguments were checked. What `Command.target` receives."""

    command: str
    options: argparse.Namespace
    run_id: str
    """Names this run in commits, ledger and report. Retries of an Airflow task carry the same one."""
    pipeline: Pipeline | None = None
    source: tuple[Source, ...] = ()
    """For commands about sources: the one named, or all of the pipeline named."""
    interval: Interval | None = None
    report: dict[str, Any] = field(default_factory=dict)
    """The stage's part of the run report; the stage fills it as it goes, so that a failure reports what was done."""
    shown: dict[str, Any] = field(default_factory=dict)
    """What `--json` prints beside the report, and no report keeps: values of records, which `penstock erase` could not take
    out of it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Command:
    """One subcommand of `penstock`."""

    name: str
    help: str
    target: str
    """`module:function`, imported only when the command runs. The function takes a Job."""
    subject: Literal["pipeline", "source", "none"] = "none"
    """What the positional argument names. `source` takes a source, or a pipeline for all of its sources."""
    interval: bool = False
    """Whether it takes `--from` and `--to`."""
    arguments: Callable[[argparse.ArgumentParser], None] = lambda _: None

    def load(self) -> Callable[[Job], None]:
        """The function behind the command."""
        module, _, function = self.target.partition(":")
        return getattr(importlib.import_module(module), function)  # type: ignore[no-any-return]
