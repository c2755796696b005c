"""What features, examples and labels are, said once more for another engine: DuckDB, one day after the other.

Written from the definition, not from the method: for each day a query over all events, with the visibility, the windows and
the repeats as conditions. It knows nothing of ranges, tiles, running sums or pruning.
"""

from collections.abc import Iterable
from datetime import date, datetime, time, timedelta
from typing import Any

import duckdb
import pyarrow as pa

from jobs.decode import events_schema
from pipelines.declare import Aggregate, FeatureSet, Pipeline, Source

DAY = timedelta(days=1)
ORDER = "(e.known_time, e.topic_epoch, e.kafka_partition, e.kafka_offset)"


class Reference:
    """A pipeline over a whole history. `two_clocks=False` forgets when events were known: what a leaking engine would see."""

    def __init__(self, pipeline: Pipeline, history: dict[str, list[dict[str, Any]]], *, two_clocks: bool = True) -> None:
        self.pipeline = pipeline
        self.two_clocks = two_clocks
        self.db = duckdb.connect()
        for source in pipeline.sources:
            table = pa.Table.from_pylist(history[source.name], schema=events_schema(source)).drop_columns(["headers"])
            naive = [pa.field(f.name, pa.timestamp("us") if pa.types.is_timestamp(f.type) else f.type) for f in table.schema]
            self.db.register("given", table.cast(pa.schema(naive)))
            self.db.execute(f"create table {source.name} as select * from given")
            self.db.execute(f"create view counted_{source.name} as {_first(source, source.name, ORDER)}")

    def features(self, feature_set: FeatureSet, day: date) -> list[dict[str, Any]]:
        """The set's rows of one day."""
        end = _midnight(day + DAY)
        figures = [
            f"{_figure(aggregate, end - window)} as {feature_set.column(aggregate, window)}"
            for window in feature_set.windows
            for aggregate in feature_set.aggregates
        ]
        entity = ", ".join(f'"{name}"' for name in feature_set.entity)
        present = " and ".join(f'"{name}" is not null' for name in feature_set.entity)
        return self._rows(
            f"select {entity}, {_at(end + self.pipeline.lateness)} as available_at, {', '.join(figures)}, "
            f"date '{day}' as event_date from counted_{feature_set.source.name} e where {self._visible(end)} "
            f"and e.event_time >= {_at(end - max(feature_set.windows))} and {present} group by {entity}"
        )

    def examples(self, day: date) -> list[dict[str, Any]]:
        """The examples that use the features of one day."""
        pipeline, end = self.pipeline, _midnight(day + DAY)
        opens = end + pipeline.lateness
        columns = [f'"{c.name}" as c_{c.name}' if c.sql is None else f"{c.sql} as c_{c.name}" for c in pipeline.spine.columns]
        spine = self._rows(
            f"select *, {', '.join(columns)} from ({self._known_spine()}) e "
            f"where as_of >= {_at(opens)} and as_of < {_at(opens + DAY)}"
        )
        sets = [{tuple(row[n] for n in s.entity): row for row in self.features(s, day)} for s in pipeline.features]
        found = []
        for row in spine:
            example = {"key": row[pipeline.spine.key], "as_of": row["as_of"], "feature_date": day, "as_of_date": day + DAY}
            example |= {name: row[name] for name in ("topic_epoch", "kafka_partition", "kafka_offset")}
            example |= {column.name: row[f"c_{column.name}"] for column in pipeline.spine.columns}
            for feature_set, known in zip(pipeline.features, sets, strict=True):
                own = known.get(tuple(row[name] for name in feature_set.entity), {})
                for window in feature_set.windows:
                    for a in feature_set.aggregates:
                        nothing = 0.0 if a.function in ("count", "sum") else None
                        value = own.get(feature_set.column(a, window), nothing)
                        example[feature_set.column(a, window)] = None if value is None else float(value)
            for dimension in pipeline.dimensions:
                same = " and ".join(f'"{name}" = {_literal(row[name])}' for name in dimension.entity)
                newest = self._rows(
                    f"select * from counted_{dimension.source.name} e where {same} and {self._visible(end)} and "
                    f"e.event_time >= {_at(end - dimension.within)} order by e.event_time desc, {ORDER} desc limit 1"
                )
                for field, column in zip(dimension.fields, dimension.columns, strict=True):
                    example[column] = newest[0][field] if newest else None
            found.append(example)
        return found

    def labels(self, day: date) -> list[dict[str, Any]]:
        """The labels that mature on one day."""
        label, key = self.pipeline.label, self.pipeline.spine.key
        until, mature = f"s.as_of + {_interval(label.horizon)}", f"s.as_of + {_interval(label.horizon + label.lateness)}"
        first = self._rows(
            f"select s.{key} as key, s.as_of, cast({label.of} as int) as label, cast(1 as double) as weight, "
            f"{mature} as mature_at, "
            f"e.topic_epoch, e.kafka_partition, e.kafka_offset, date '{day}' as mature_date "
            f"from ({self._known_spine()}) s join counted_{label.source.name} e "
            f"on e.{label.key} = s.{key} and e.event_time >= s.as_of and e.event_time < {until} and e.known_time < {mature} "
            f"where {mature} >= {_at(_midnight(day))} and {mature} < {_at(_midnight(day + DAY))} "
            f"qualify row_number() over (partition by s.kafka_partition, s.kafka_offset order by {ORDER}) = 1"
        )
        return [row for row in first if row["label"] is not None]

    def late(self, day: date) -> int:
        """How many spine events of the day's examples were not known by their `as_of`, in any of their copies."""
        spine = self.pipeline.spine
        opens = _midnight(day + DAY) + self.pipeline.lateness
        every = _first(
            spine.source,
            f"(select *, {self._as_of()} as as_of from {spine.source.name})",
            f"(e.known_time >= e.as_of, {ORDER[1:]}",
        )
        found = self._rows(
            f"select * from ({every}) where as_of >= {_at(opens)} and as_of < {_at(opens + DAY)} and known_time >= as_of"
        )
        return len(found)

    def _known_spine(self) -> str:
        spine = self.pipeline.spine
        known = f"(select *, {self._as_of()} as as_of from {spine.source.name} where known_time < {self._as_of()})"
        return _first(spine.source, known, ORDER)

    def _as_of(self) -> str:
        return f"event_time - {_interval(self.pipeline.spine.before)}"

    def _visible(self, end: datetime) -> str:
        return f"e.event_time < {_at(end)}" + (f" and e.known_time < {_at(end)}" if self.two_clocks else "")

    def _rows(self, sql: str) -> list[dict[str, Any]]:
        return list(self.db.sql(sql).to_arrow_table().to_pylist())


def days(first: date, last: date) -> Iterable[date]:
    """Each day, both ends included."""
    return [first + timedelta(days=number) for number in range((last - first).days + 1)]


def _first(source: Source, table: str, order: str) -> str:
    """The events of which no other with the same id comes first within the horizon of repeats."""
    near = f"abs(date_diff('day', p.event_date, e.event_date)) <= {source.repeats_within.days}"
    return (
        f"select * from {table} e where rejected_reason is null and not exists ("
        f"select 1 from {table} p where p.rejected_reason is null "
        f"and p.{source.event_id} = e.{source.event_id} and {near} and {order.replace('e.', 'p.')} < {order})"
    )


def _figure(aggregate: Aggregate, start: datetime) -> str:
    where = f"e.event_time >= {_at(start)} and ({aggregate.where or 'true'})"
    of = aggregate.of
    match aggregate.function:
        case "count":
            return f"count(*) filter (where {where})"
        case "sum":
            return f"cast(coalesce(sum({of}) filter (where {where}), 0) as bigint)"
        case "mean":
            return f"cast(sum({of}) filter (where {where}) as double) / nullif(count({of}) filter (where {where}), 0)"
        case "rate":
            return f"cast(count(*) filter (where {where} and {of}) as double) / nullif(count({of}) filter (where {where}), 0)"


def _midnight(day: date) -> datetime:
    return datetime.combine(day, time())


def _at(moment: datetime) -> str:
    return f"timestamp '{moment}'"


def _interval(span: timedelta) -> str:
    return f"interval {span // timedelta(microseconds=1)} microseconds"


def _literal(value: Any) -> str:
    return "null" if value is None else repr(value)
