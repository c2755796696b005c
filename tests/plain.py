"""What features, examples and labels are, said in plain Python: rows are dicts, each sentence of the definition a comprehension.

It knows no engine, no ranges, no tiles and no pruning. Expressions are given beside the SQL: a dict from its text to a function
of the row; a text that is a column's name means the column. Null is None, and a function has to mind it.
"""

import json
import math
from collections.abc import Callable, Iterable, Mapping
from datetime import date, datetime, time, timedelta
from decimal import ROUND_HALF_UP, Decimal
from typing import Any

from pipelines.declare import Aggregate, DailySpine, Dimension, FeatureSet, Pipeline, Source, Table

Row = dict[str, Any]
Meanings = Mapping[str, Callable[[Row], Any]]

DAY = timedelta(days=1)
EPOCH = datetime(1970, 1, 1)
POSITION = ("known_time", "topic_epoch", "kafka_partition", "kafka_offset")
PLACE = POSITION[1:]


class Plain:
    """A pipeline over a whole history, and over the rows of its snapshot tables."""

    def __init__(
        self,
        pipeline: Pipeline,
        history: Mapping[str, list[Row]],
        meanings: Meanings,
        *,
        tables: Mapping[str, list[Row]] | None = None,
        hashed: Callable[[str, int], int] = lambda _key, _micros: 0,
    ) -> None:
        self.pipeline, self.meanings, self.hashed = pipeline, meanings, hashed
        self.history = {name: [_naive(row) for row in rows] for name, rows in history.items()}
        self.tables = {name: [_naive(row) for row in rows] for name, rows in (tables or {}).items()}
        self.counted = {s.name: no_repeats(s, self.history[s.name]) for s in pipeline.sources}
        self.of_set = {s.name: self._events(s) for s in pipeline.features}

    def features(self, feature_set: FeatureSet, day: date) -> list[Row]:
        """The set's rows of one day."""
        end = midnight(day + DAY)
        stamps = {"available_at": end + self.pipeline.lateness, "event_date": day}
        entities = {_fields(event, feature_set.entity) for event in self.of_set[feature_set.name]}
        found = {entity: self._figures(feature_set, entity, end) for entity in entities}
        return [
            dict(zip(feature_set.entity, entity, strict=True)) | figures | stamps for entity, figures in found.items() if figures
        ]

    def examples(self, day: date) -> list[Row]:
        """The examples that the run over a day makes."""
        return [self._example(row) for row in self.spine() if self._made_on(row["as_of"]) == day]

    def labels(self, day: date) -> list[Row]:
        """The labels that mature on one day."""
        label = self.pipeline.label
        mature = [row | {"mature_at": row["as_of"] + label.horizon + label.lateness} for row in self.spine()]
        every = [self._label(row) for row in mature if row["mature_at"].date() == day]
        return self._weighed([row for row in every if row["label"] is not None])

    def spine(self) -> list[Row]:
        """Everything that is an example: `key`, `as_of`, its position and what it is."""
        declared = self.pipeline.spine
        if isinstance(declared, DailySpine):
            return self._daily(declared)
        closed = any(s.closed for s in self.pipeline.features)
        timed = [event | {"as_of": event["event_time"] - declared.before} for event in self.history[declared.source.name]]
        known = [e for e in timed if e["known_time"] < e["as_of"] or (closed and e["known_time"] == e["as_of"])]
        return [event | {"key": _text(event[declared.key])} for event in no_repeats(declared.source, known)]

    def _daily(self, declared: DailySpine) -> list[Row]:
        good = [e for e in self.counted[declared.source.name] if self._holds(declared.where, e) and _whole(e, declared.entity)]
        first, last = min(e["event_date"] for e in good), max(e["event_date"] for e in good) + declared.within
        found = []
        for end in (midnight(first + DAY * number) for number in range((last - first).days + 2)):
            seen = [e for e in good if _visible(e, end) and e["event_time"] >= end - declared.within]
            for entity in {_fields(event, declared.entity) for event in seen}:
                key = (
                    _text(entity[0])
                    if len(entity) == 1
                    else json.dumps([_text(value) for value in entity], separators=(",", ":"), ensure_ascii=False)
                )
                row = dict(zip(declared.entity, entity, strict=True)) | dict.fromkeys(PLACE)
                found.append(row | {"key": key, "as_of": end + self.pipeline.lateness})
        return found

    def _events(self, feature_set: FeatureSet) -> list[Row]:
        """A set's events: no repeats, with what each looks up and computes, those that count."""
        events = self.counted[feature_set.source.name]
        for lookup in feature_set.lookups:
            moments = [max(e["event_time"], e["known_time"]) for e in events]
            events = [e | self._newest(lookup, _fields(e, lookup.entity), x) for e, x in zip(events, moments, strict=True)]
        for expression in feature_set.per_event:
            events = [e | {expression.name: self._value(expression.sql, e)} for e in events]
        return [e for e in events if _whole(e, feature_set.entity) and self._holds(feature_set.where, e)]

    def _figures(self, feature_set: FeatureSet, entity: tuple[Any, ...], end: datetime, *, without: Any = None) -> Row:
        """The set's columns for one entity at one moment; empty where nothing in the longest window counts."""
        own = [e for e in self.of_set[feature_set.name] if _fields(e, feature_set.entity) == entity]
        seen = [e for e in own if _visible(e, end, closed=feature_set.closed) and e[feature_set.source.event_id] != without]
        inside = {w: [e for e in seen if e["event_time"] >= end - w] for w in feature_set.windows}
        if not inside[max(feature_set.windows)]:
            return {}
        found = {
            feature_set.column(a, w): self._figure(a, inside[w]) for w in feature_set.windows for a in feature_set.aggregates
        }
        for one in feature_set.derived:
            found[f"{feature_set.name}_{one.name}"] = self._value(one.sql, found)
        return found

    def _figure(self, aggregate: Aggregate, events: list[Row]) -> Any:
        chosen = sorted(
            (e for e in events if self._holds(aggregate.where, e)), key=lambda e: (e["event_time"], *_fields(e, POSITION))
        )
        if aggregate.function == "count":
            return len(chosen)
        values = [v for e in chosen if (v := self._value(aggregate.of, e)) is not None]
        if aggregate.scale is not None:
            step = Decimal(1).scaleb(-aggregate.scale)
            values = [Decimal(repr(v)).quantize(step, ROUND_HALF_UP) for v in values]
        if aggregate.function in ("first", "last", "last_k"):
            values = [_text(v) if aggregate.type == "string" else float(v) for v in values]
        n = len(values)
        match aggregate.function:
            case "sum":
                return sum(values)
            case "distinct" | "approx_distinct":
                return len(set(values))
            case "last_k":
                return values[: -(aggregate.k or 0) - 1 : -1] or None
            case "stddev":
                spread = [n * sum(v * v for v in values) - sum(values) ** 2] if n > 1 else []
                return math.sqrt(Decimal(spread[0]) / (n * (n - 1))) if spread else None
        if not values:
            return None
        match aggregate.function:
            case "mean" | "rate":
                return float(sum(values)) / n
            case "min":
                return min(values)
            case "max":
                return max(values)
            case "first":
                return values[0]
            case "last":
                return values[-1]
        raise KeyError(aggregate.function)

    def _example(self, row: Row) -> Row:
        pipeline = self.pipeline
        day = (row["as_of"] - pipeline.lateness).date() - DAY
        found = {"key": row["key"], "as_of": row["as_of"], "feature_date": day, "as_of_date": row["as_of"].date()}
        if not pipeline.exact:
            found["as_of_date"] = day + DAY
        found |= {name: row[name] for name in PLACE}
        for column in pipeline.spine.columns:
            found[column.name] = self._value(column.sql or column.name, row)
        for s in pipeline.features:
            by_event, entity = s.accuracy == "event", _fields(row, s.on_spine)
            without = row["key"] if by_event and not s.own_event else None
            figures = self._figures(s, entity, row["as_of"] if by_event else midnight(day + DAY), without=without)
            empty = {s.column(a, w): _nothing(a) for w in s.windows for a in s.aggregates}
            found |= dict.fromkeys(s.columns) | empty | figures
        for dimension in pipeline.dimensions:
            found |= self._newest(dimension, _fields(row, dimension.entity), midnight(day + DAY))
        found |= {name: None if found[name] is None else _text(found[name]) for name in pipeline.categories}
        return found | {name: None if found[name] is None else float(found[name]) for name in pipeline.numbers}

    def _newest(self, dimension: Dimension, entity: tuple[Any, ...], moment: datetime) -> Row:
        """A dimension's columns: the newest version that was visible at a moment."""
        if isinstance(dimension.source, Table):
            table = dimension.source
            clock = [{**r, "event_time": r[table.valid_from], "known_time": r[table.valid_from]} for r in self.tables[table.name]]
            versions = [r | {"order": [(r[f.name] is not None, r[f.name]) for f in table.fields]} for r in clock]
        else:
            versions = [e | {"order": _fields(e, POSITION)} for e in self.counted[dimension.source.name]]
        seen = [
            v for v in versions if _visible(v, moment) and _fields(v, dimension.entity) == entity and _whole(v, dimension.entity)
        ]
        fresh = [v for v in seen if dimension.within is None or v["event_time"] >= moment - dimension.within]
        last = max(fresh, key=lambda v: (v["event_time"], v["order"]), default={})
        return {column: last.get(field) for field, column in zip(dimension.fields, dimension.columns, strict=True)}

    def _label(self, row: Row) -> Row:
        label = self.pipeline.label
        later = [
            e
            for e in self.counted[label.source.name]
            if row["as_of"] <= e["event_time"] < row["as_of"] + label.horizon and e["known_time"] < row["mature_at"]
        ]
        found = {name: row[name] for name in ("key", "as_of", "mature_at")} | {"mature_date": row["mature_at"].date()}
        if label.key is None:
            own = [e for e in later if _fields(e, label.entity) == _fields(row, label.entity) and _whole(e, label.entity)]
            outcome = {a.name: self._figure(a, own) for a in label.aggregates} | dict.fromkeys(PLACE)
        else:
            own = [e for e in later if e[label.key] is not None and _text(e[label.key]) == row["key"]]
            outcome = min(own, key=lambda e: _fields(e, POSITION), default={})
        holds = self._value(label.of, outcome) if outcome else None
        return found | {name: outcome.get(name) for name in PLACE} | {"label": None if holds is None else int(holds)}

    def _weighed(self, rows: list[Row]) -> list[Row]:
        """The labels of one day with their weights."""
        label = self.pipeline.label
        drawn = [row | {"hash": self.hashed(row["key"], (row["as_of"] - EPOCH) // timedelta(microseconds=1))} for row in rows]
        negative = sorted((r for r in drawn if not r["label"]), key=lambda r: (r["hash"] & (2**53 - 1), r["key"], r["as_of"]))
        if label.negatives is not None:
            kept = [r for r in negative if (r["hash"] & (2**53 - 1)) / 2**53 < label.negatives]
            weight = 1 / label.negatives
        else:
            ratio, positive = label.negatives_per_positive, len(drawn) - len(negative)
            kept = negative if ratio is None else negative[: math.ceil(ratio * positive)]
            weight = len(negative) / len(kept) if kept else 0.0
        weights = [1.0 if r["label"] else weight if r in kept else 0.0 for r in drawn]
        return [{k: v for k, v in r.items() if k != "hash"} | {"weight": w} for r, w in zip(drawn, weights, strict=True)]

    def _made_on(self, as_of: datetime) -> date:
        """The day whose run makes the examples of a moment."""
        return as_of.date() if self.pipeline.exact else (as_of - self.pipeline.lateness).date() - DAY

    def _value(self, sql: str, row: Row) -> Any:
        return row[sql] if sql in row else self.meanings[sql](row)

    def _holds(self, sql: str | None, row: Row) -> bool:
        return sql is None or self._value(sql, row) is True


def no_repeats(source: Source, rows: Iterable[Row]) -> list[Row]:
    """The events of which no other with the same id comes first within the horizon of repeats."""
    same: dict[Any, list[Row]] = {}
    for row in rows:
        same.setdefault(row[source.event_id], []).append(row)

    def earlier(row: Row, other: Row) -> bool:
        near = abs(row["event_date"] - other["event_date"]) <= source.repeats_within
        return near and _fields(other, POSITION) < _fields(row, POSITION)

    return [row for copies in same.values() for row in copies if not any(earlier(row, other) for other in copies)]


def days(first: date, last: date) -> list[date]:
    """Each day, both ends included."""
    return [first + timedelta(days=number) for number in range((last - first).days + 1)]


def midnight(day: date) -> datetime:
    """Where a day begins."""
    return datetime.combine(day, time())


def _visible(row: Row, moment: datetime, *, closed: bool = False) -> bool:
    latest = max(row["event_time"], row["known_time"])
    return bool(latest <= moment if closed else latest < moment)


def _nothing(aggregate: Aggregate) -> int | None:
    return 0 if aggregate.function in ("count", "sum", "distinct", "approx_distinct") else None


def _fields(row: Row, names: Iterable[str]) -> tuple[Any, ...]:
    return tuple(row[name] for name in names)


def _whole(row: Row, names: Iterable[str]) -> bool:
    return all(row[name] is not None for name in names)


def _naive(row: Row) -> Row:
    return {k: v.replace(tzinfo=None) if isinstance(v, datetime) else v for k, v in row.items()}


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
