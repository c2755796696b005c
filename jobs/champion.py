"""Who is the champion: the decisions table, which is the truth, and the registry's alias, which follows it.

`<pipeline>/promotions` holds every decision for ever. A decision commits by compare-and-set: the Delta transaction
`champion/<pipeline>` counts the decisions, and a commit is written with the very table handle on which it was planned,
so that of two decisions at once one is refused and plans again. Readers of the table see one champion at each moment.
MLflow's aliases have no compare-and-set: whoever promotes or scores mends the alias where it differs.
"""

import json
import logging
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from typing import Any, Literal

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake
from deltalake.exceptions import CommitFailedError

from jobs import lake, registry
from jobs.errors import RetryError
from pipelines.declare import Pipeline

PROMOTIONS = pa.schema(
    [
        ("decided_at", lake.INSTANT),
        ("decision", pa.string()),
        ("candidate", pa.int64()),
        ("champion", pa.int64()),
        ("rule", pa.string()),
        ("figures", pa.string()),
        ("reasons", pa.list_(pa.string())),
        ("snapshot", pa.string()),
        ("run_id", pa.string()),
        ("by", pa.string()),
    ]
)
"""`champion` is the one before the decision; `rule`, `figures` and `snapshot` (the candidate's tags) are JSON. `decided_at`
grows with each row, whatever the clocks of the deciders say: its order is the order of the decisions."""

TRIES = 5
"""How often a lost race is planned again before the job gives up until its retry."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True, slots=True)
class Decision:
    """What was decided about one version."""

    decision: Literal["promoted", "refused"]
    candidate: int
    champion: int | None
    """The champion before this decision."""
    rule: dict[str, Any]
    figures: dict[str, Any]
    reasons: list[str]
    snapshot: dict[str, str]
    """The candidate's tags in the registry."""
    run_id: str
    by: str
    decided_at: datetime | None = None
    """Set when it is committed."""

    @property
    def trained_through(self) -> date:
        """The last day that had a say in the candidate."""
        return date.fromisoformat(self.snapshot["trained_through"])


@dataclass(frozen=True, kw_only=True, slots=True)
class History:
    """All decisions of a pipeline as they stood in one version of the table."""

    table: DeltaTable | None
    """The handle that was read, and with which a decision that rests on it must be committed; None before the first."""
    count: int
    """How many decisions the table's transaction `champion/<pipeline>` has counted."""
    decisions: tuple[Decision, ...]
    """The oldest first."""

    @property
    def champion(self) -> Decision | None:
        """The newest promotion: its candidate is the champion. None before the first."""
        return next((made for made in reversed(self.decisions) if made.decision == "promoted"), None)

    @property
    def decided(self) -> frozenset[int]:
        """The versions that were decided."""
        return frozenset(made.candidate for made in self.decisions)


def promotions_uri(pipeline: Pipeline) -> str:
    """Where a pipeline's decisions lie."""
    return lake.uri(pipeline.name, "promotions")


def history(pipeline: Pipeline) -> History:
    """The decisions as they stand."""
    table = lake.load(promotions_uri(pipeline))
    if table is None:
        return History(table=None, count=0, decisions=())
    rows = lake.query(table, "select * from t order by decided_at").to_pylist()
    return History(table=table, count=_counted(pipeline, table), decisions=tuple(_decision(row) for row in rows))


def commit(pipeline: Pipeline, planned_on: History, decisions: list[Decision], *, run_id: str) -> bool:
    """Append the decisions in one commit, if nothing was decided since `planned_on` was read; False where something was.

    False may also mean that this very commit arrived and its answer was lost: read the history again, where `run_id`
    tells. Raises RetryError where the lake did not answer.
    """
    uri = promotions_uri(pipeline)
    table = planned_on.table
    if table is None:
        # The first decision creates the table, empty, in a commit of its own; a neighbour's creation serves as well.
        lake.create(uri, PROMOTIONS)
        table = DeltaTable(uri)
    if _counted(pipeline, table) != planned_on.count:
        return False
    newest = planned_on.decisions[-1].decided_at if planned_on.decisions else None
    now = datetime.now(UTC)
    first = now if newest is None else max(now, newest + timedelta(microseconds=1))
    rows = [_row(made, first + timedelta(microseconds=place)) for place, made in enumerate(decisions)]
    properties = CommitProperties(
        app_transactions=[Transaction(_transaction(pipeline), planned_on.count + len(decisions))],
        custom_metadata={"run_id": run_id, "candidates": json.dumps([made.candidate for made in decisions])},
    )
    try:
        write_deltalake(table, pa.Table.from_pylist(rows, schema=PROMOTIONS), mode="append", commit_properties=properties)
    except CommitFailedError as refused:
        log.info("the decision on %s was not committed (%s); reading the history again", pipeline.name, refused)
        return False
    except OSError as failure:
        raise RetryError(
            f"the decision on {pipeline.name} could not be written to {uri} ({failure}). Run promote again."
        ) from failure
    return True


def mend(pipeline: Pipeline) -> dict[str, Any]:
    """Make the registry's alias name the champion of the table, and say what was found.

    The table is read again after each change, since a neighbour's decision may have come between: whoever writes the
    alias last has compared it afterwards. Returns `alias` (what it names now) and, where it differed, `was`, and whether
    that was `unexpected`: not the champion before the last promotion, which a promotion that ended too early leaves behind.

    Raises RetryError where the registry is away, or decisions keep coming.
    """
    report: dict[str, Any] = {}
    for _ in range(TRIES):
        newest = history(pipeline).champion
        alias = registry.champion_alias(pipeline)
        if newest is None or alias == newest.candidate:
            if newest is None and alias is not None:
                log.warning(
                    "the alias %r of %s names version %d, which no decision promoted: it is not the champion",
                    registry.ALIAS,
                    pipeline.name,
                    alias,
                )
                report = {"was": alias, "unexpected": True}
            return {"alias": alias, **report}
        unexpected = alias != newest.champion
        if unexpected:
            log.warning(
                "the alias %r of %s named %s, and the decisions say version %d: another hand, or promotions met; it is set right",
                registry.ALIAS,
                pipeline.name,
                "nothing" if alias is None else f"version {alias}",
                newest.candidate,
            )
        report = report or {"was": alias, "unexpected": unexpected}
        registry.set_champion_alias(pipeline, newest.candidate)
    raise RetryError(f"the champion of {pipeline.name} changed {TRIES} times while its alias was set. Run this one again.")


def _transaction(pipeline: Pipeline) -> str:
    return f"champion/{pipeline.name}"


def _counted(pipeline: Pipeline, table: DeltaTable) -> int:
    return table.transaction_version(_transaction(pipeline)) or 0


def _decision(row: dict[str, Any]) -> Decision:
    parsed = {name: json.loads(row[name]) for name in ("rule", "figures", "snapshot")}
    return Decision(**{**row, **parsed})


def _row(made: Decision, decided_at: datetime) -> dict[str, Any]:
    return {
        "decided_at": decided_at,
        "decision": made.decision,
        "candidate": made.candidate,
        "champion": made.champion,
        "rule": json.dumps(made.rule),
        "figures": json.dumps(made.figures, allow_nan=False),
        "reasons": made.reasons,
        "snapshot": json.dumps(made.snapshot, sort_keys=True),
        "run_id": made.run_id,
        "by": made.by,
    }
