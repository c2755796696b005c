"""A training that was cut short, and its next attempt: where the checkpoints lie, and what both must have alike.

`<lake>/<pipeline>/checkpoints/<run id>/` has the checkpoints and `begun.json`: the snapshot, the inputs and the settings of the
first attempt. The next one, under the same run id, reads the same versions of the tables, and is refused where anything else
differs.
"""

import json
import logging
import re
import shutil
import time
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from jobs import lake
from jobs.errors import RetryError, UsageError
from jobs.train.plan import Plan
from pipelines.declare import Pipeline

log = logging.getLogger(__name__)

BEGUN = "begun.json"
ABANDONED = 30 * 24 * 3600
"""Seconds after which the checkpoints of a run that nobody went on with are deleted."""


def folder(pipeline: Pipeline, run_id: str) -> Path | None:
    """Where a run's checkpoints lie; None where the lake is no folder."""
    home = lake.uri(pipeline.name, "checkpoints")
    if "://" in home:
        log.warning("no checkpoints are kept, since the lake is no folder: a training that is cut short begins anew")
        return None
    return Path(home) / re.sub(r"[^\w.:+-]", "_", run_id)


def versions(place: Path | None) -> dict[str, int] | None:
    """The versions of the tables that the first attempt read; None where this is the first."""
    begun = _begun(place)
    return None if begun is None else {name: int(table["version"]) for name, table in begun["snapshot"]["tables"].items()}


def begin(place: Path | None, pipeline: Pipeline, described: dict[str, Any], plan: Plan) -> None:
    """Keep what this attempt begins with. Raises UsageError where an earlier one began otherwise, saying how."""
    if place is None:
        return
    mine = json.loads(
        json.dumps(
            {
                "snapshot": {name: described[name] for name in ("tables", "parts")},
                "inputs": {"categories": pipeline.categories, "numbers": pipeline.numbers},
                "settings": asdict(plan),
            }
        )
    )
    begun = _begun(place)
    if begun is None:
        try:
            place.mkdir(parents=True, exist_ok=True)
            part = place / f"{BEGUN}.part"
            part.write_text(json.dumps(mine))
            part.rename(place / BEGUN)
        except OSError as failure:
            raise RetryError(f"{place} could not be written ({failure}). Is there room?") from failure
        return
    if others := [*_differences(begun, mine)]:
        raise UsageError(
            f"this run began with something else: {'; '.join(others)}. Its checkpoints would not go on to the same model. "
            f"Put it back, or begin anew under another --run-id, or delete {place}."
        )


def end(place: Path | None) -> None:
    """The run is done: its checkpoints go, and those that other runs have abandoned."""
    if place is None:
        return
    shutil.rmtree(place, ignore_errors=True)
    for other in place.parent.glob("*"):
        with suppress(OSError):
            if max(path.stat().st_mtime for path in (other, *other.iterdir())) < time.time() - ABANDONED:
                log.info("the checkpoints of the run %s are deleted: nobody went on with it", other.name)
                shutil.rmtree(other, ignore_errors=True)


def _begun(place: Path | None) -> dict[str, Any] | None:
    if place is None:
        return None
    try:
        return dict(json.loads((place / BEGUN).read_text()))
    except FileNotFoundError:
        return None
    except OSError as failure:
        raise RetryError(f"{place / BEGUN} could not be read ({failure}).") from failure


def _differences(begun: dict[str, Any], mine: dict[str, Any]) -> list[str]:
    found = []
    for group in ("snapshot", "inputs", "settings"):
        for name in sorted({*begun[group], *mine[group]}):
            was, now = begun[group].get(name), mine[group].get(name)
            if was != now:
                found.append(f"{name} of its {group}: {_short(was)}, now {_short(now)}")
    return found


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 120 else f"{text[:117]}..."
