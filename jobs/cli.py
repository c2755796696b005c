"""`penstock COMMAND SUBJECT --from D --to D`: arguments, then the stage, then an exit code.

The only place where a failure becomes an exit code, and where a run report is closed. See `penstock --help`.
"""

import argparse
import importlib
import pkgutil
import sys
import time
import traceback
import uuid
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import jobs
import pipelines
from jobs import report
from jobs.command import Command, Job
from jobs.errors import Exit, JobError, UsageError
from jobs.interval import resolve
from jobs.secrets import log_to_stderr, mask

EXIT_CODES = """\
exit codes:
  0   done (the report says how much, also when there was nothing to do)
  64  wrong arguments or declaration            no retry
  65  the data breaks a rule                    no retry
  70  a bug of ours, with the traceback         no retry
  75  a service was away, or a day is not over  try again
"""


def main(argv: list[str] | None = None) -> int:
    """Run one command. Returns its exit code."""
    log_to_stderr()
    commands = {command.name: command for command in discover()}
    options = _parser(commands).parse_args(argv)
    started = datetime.now(UTC)
    clock = time.monotonic()
    job = Job(command=options.command, options=options, run_id=options.run_id)
    code, message = _attempt(commands[options.command], job)
    if message:
        print(f"penstock {options.command}: {message}", file=sys.stderr)
    closed = {
        "command": options.command,
        "subject": getattr(options, "subject", None),
        "interval": [job.interval.start, job.interval.end] if job.interval else None,
        "run_id": job.run_id,
        "started": started.isoformat(timespec="seconds"),
        "seconds": round(time.monotonic() - clock, 3),
        "exit_code": int(code),
        "message": message,
        **job.report,
    }
    if options.json:
        print(report.dumps(closed | job.shown))
    if options.report:
        try:
            options.report.write_text(report.dumps(closed))
        except OSError as failure:
            print(mask(f"penstock: the run report could not be written to {options.report}: {failure}"), file=sys.stderr)
    if commands[options.command].subject != "none":
        _keep(closed)
    return int(code)


def discover() -> list[Command]:
    """The commands of every package in `jobs`."""
    packages = [found.name for found in pkgutil.iter_modules(jobs.__path__) if found.ispkg]
    return [command for name in packages for command in importlib.import_module(f"jobs.{name}").COMMANDS]


def _attempt(command: Command, job: Job) -> tuple[Exit, str | None]:
    """Run the command: its exit code, and the message where it failed."""
    try:
        _aim(command, job)
        command.load()(job)
    except JobError as failure:
        return Exit(failure.exit_code), mask(str(failure))
    except Exception as bug:
        print(mask(traceback.format_exc()), end="", file=sys.stderr)
        return Exit.BUG, mask(f"{type(bug).__name__}: {bug}")
    return Exit.DONE, None


def _aim(command: Command, job: Job) -> None:
    """Turn the subject and the dates into what the stage works on."""
    try:
        if command.subject == "pipeline":
            job.pipeline = pipelines.load(job.options.subject)
        elif command.subject == "source":
            sources = pipelines.sources()
            if job.options.subject in sources:
                job.source = (sources[job.options.subject],)
            elif job.options.subject in pipelines.names():
                job.source = pipelines.load(job.options.subject).sources
            else:
                known = [*sources, *pipelines.names()]
                raise UsageError(
                    f"there is no source or pipeline {job.options.subject!r}{pipelines.near(job.options.subject, known)}."
                )
    except ValueError as wrong:
        raise UsageError(str(wrong)) from wrong
    if command.interval:
        job.interval = resolve(first=job.options.first, last=job.options.last, now=datetime.now(UTC))


def _keep(closed: dict[str, object]) -> None:
    """Keep the report; a lake that can't take it does not undo what the job did."""
    try:
        report.keep(closed)
    except (JobError, OSError) as failure:
        print(mask(f"penstock: the run report could not be kept: {failure}"), file=sys.stderr)


def _parser(commands: dict[str, Command]) -> argparse.ArgumentParser:
    parser = _Parser(
        prog="penstock",
        description="From events in Kafka to a promoted model and its predictions, every day, exactly once.",
        epilog=EXIT_CODES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    subparsers = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    groups: dict[str, Any] = {}
    for command in commands.values():
        group, _, action = command.name.rpartition(" ")
        if group and group not in groups:
            groups[group] = _group(subparsers, group, commands)
        place = groups[group] if group else subparsers
        _fill(place.add_parser(action, help=command.help, description=command.help), command)
    return parser


def _group(subparsers: Any, group: str, commands: dict[str, Command]) -> Any:
    """The place for the commands whose names begin with the same word, `penstock GROUP ACTION`."""
    actions = [name.rpartition(" ")[2] for name in commands if name.startswith(f"{group} ")]
    sub = subparsers.add_parser(
        group,
        help=f"{', '.join(actions)}: see `penstock {group} --help`",
        description=f"`penstock {group} ACTION --help` explains the arguments of an action.",
        epilog=EXIT_CODES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    return sub.add_subparsers(dest="action", metavar="ACTION", required=True)


def _fill(sub: argparse.ArgumentParser, command: Command) -> None:
    """What each command takes, and what it takes for itself."""
    sub.set_defaults(command=command.name)
    if command.subject == "pipeline":
        sub.add_argument("subject", metavar="PIPELINE", help="a pipeline's name; `penstock pipelines` lists them")
    elif command.subject == "source":
        sub.add_argument("subject", metavar="SOURCE", help="a source's name, or a pipeline's for all of its sources")
    if command.interval:
        sub.add_argument("--from", dest="first", metavar="DAY", help="the first day, in UTC, for example 2013-04-01")
        sub.add_argument("--to", dest="last", metavar="DAY", help="the last day; it is included")
    sub.add_argument(
        "--run-id", default=uuid.uuid4().hex[:12], help="names this run in commits and reports; the same for each retry"
    )
    sub.add_argument("--report", type=Path, metavar="FILE", help="write the run report here too, as JSON")
    sub.add_argument("--json", action="store_true", help="print the run report, as JSON, to the standard output")
    command.arguments(sub)


class _Parser(argparse.ArgumentParser):
    """argparse exits with 2 on wrong arguments, which means "killed" in the job contract: 64 is ours."""

    def error(self, message: str) -> None:  # type: ignore[override]
        self.print_usage(sys.stderr)
        self.exit(int(Exit.USAGE), f"{self.prog}: {message}. See `{self.prog} --help`.\n")


if __name__ == "__main__":
    sys.exit(main())
