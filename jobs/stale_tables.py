"""What changed in snapshot tables since days were computed from them: others write these, so there is no account of it.

Two versions of a Delta table are compared, row by row: a row that only one of them has counts from the day on which it holds.
Where they can't be compared (plain Parquet keeps no old version, and a vacuum deletes it), each day that looks at the table is
stale.
"""

from collections import Counter
from collections.abc import Mapping
from datetime import date
from typing import Any

import pyarrow as pa
from deltalake import QueryBuilder
from deltalake.exceptions import DeltaError

from jobs import batches, lake, reach, store
from jobs.interval import DAY, Interval
from pipelines.declare import Pipeline, Table


def stale(
    pipeline: Pipeline, table: Table, computed: Mapping[date, list[Mapping[str, Any]]], now: Any
) -> list[tuple[date, str, int]]:
    """The days that would read another table than they did: day, the version that was read, and the rows that differ.

    `computed` says from which version each day was computed, `now` is the version as it stands. Rows are 0 where nobody can tell.
    """
    found = []
    differ: dict[Any, Counter[date] | None] = {}
    for day, each in computed.items():
        for version in {inputs.get(table.name) for inputs in each} - {now}:
            if version not in differ:
                differ[version] = _differing(table, version, now)
            changed = differ[version]
            if changed is None:
                found.append((day, str(version), 0))
            elif rows := sum(count for one, count in changed.items() if _seen(pipeline, table, day, one)):
                found.append((day, str(version), rows))
    return found


def _seen(pipeline: Pipeline, table: Table, day: date, valid_from: date) -> bool:
    """Whether the run of a day may give somebody a row that holds from a day on."""
    one = Interval(day, day + DAY)
    days = reach.feature_days(pipeline, one)
    looks = [
        (None if d.within is None else reach.back(days, d.within).start, days.end)
        for d in pipeline.dimensions
        if d.source == table
    ]
    for feature_set in pipeline.features:
        own = reach.of_set(pipeline, feature_set, one)
        looks += [
            (None if lookup.within is None else reach.looked_up(lookup, own).start, own.end)
            for lookup in feature_set.lookups
            if lookup.source == table
        ]
    return any((start is None or start <= valid_from) and valid_from < end for start, end in looks)


def _differing(table: Table, before: Any, now: Any) -> Counter[date] | None:
    """How many rows only one of the versions has, by the day on which they hold; None where that can't be told."""
    if table.format != "delta" or not isinstance(before, int) or not isinstance(now, int):
        return None
    uri = batches.table_uri(table)
    columns = ", ".join(f'"{field.name}"' for field in table.fields)
    try:
        old, new = lake.load(uri, before), lake.load(uri, now)
        assert old is not None and new is not None
        with store.asked(f"the table {uri} could not be read"):
            rows = pa.table(
                QueryBuilder()
                .register("old", old)
                .register("new", new)
                .execute(
                    f'select cast("{table.valid_from}" as date) as day, count(*) as rows from ('
                    f"(select {columns} from new except all select {columns} from old) union all "
                    f"(select {columns} from old except all select {columns} from new)"
                    f') where "{table.valid_from}" is not null group by 1'
                )
                .read_all()
            )
    except (DeltaError, FileNotFoundError):
        return None
    return Counter({row["day"]: row["rows"] for row in rows.to_pylist()})
