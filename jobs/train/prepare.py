"""Examples with their labels, encoded, as one Parquet file for each part: what the ranks stream and the baselines read.

Arrow and delta-rs only. The vocabularies and the numbers' scales are fitted on the training days alone.
"""

import itertools
from dataclasses import dataclass
from datetime import date
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake import QueryBuilder

from jobs.errors import DataError
from jobs.interval import Interval
from jobs.model import Encoder
from jobs.parts import Parts
from jobs.train.plan import Plan
from jobs.train.snapshot import Pinned
from jobs.train.weights import weights_of_categories, weights_of_numbers
from pipelines.declare import Pipeline, Training

LIMIT = 2.0
"""Standardized numbers are cut off here: one blizzard's rates must not carry a model far outside what it was fitted on.
Chosen among 1.5, 2, 3 and none by the average precision on days before any holdout."""
EPOCH = date(1970, 1, 1).toordinal()
ROWS_PER_GROUP = 8192
"""The most rows of a row group. A rank holds one row group for each of its shards in memory."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Prepared:
    """What `prepare` put into the shared folder."""

    plan: Plan
    rows: dict[str, int]
    """Examples of each part."""
    example: pa.Table
    """A few rows as the model takes them, raw."""


def prepare(pipeline: Pipeline, pinned: Pinned, parts: Parts, settings: Training, folder: Path) -> Prepared:
    """Write `training.parquet`, `validation.parquet`, `holdout.parquet`, the encoder's files in `model/`, and the plan.

    Raises DataError where a part has no example with a label, or the training part only one kind of label.
    """
    read = {name: _labelled(pipeline, pinned, days, name) for name, days in _named(parts)}
    training = read["training"]
    base_rate = float(np.average(training["label"].to_numpy(), weights=training["weight"].to_numpy()))
    if not 0 < base_rate < 1:
        raise DataError(
            f"all {training.num_rows} labelled examples of the training days {parts.training} have the label {base_rate:g}: "
            "there is nothing to tell apart. Look at the label's declaration, or train on more days."
        )
    model = folder / "model"
    model.mkdir()
    pq.write_table(_vocabularies(training, pipeline.categories, settings.min_count), model / "vocabularies.parquet")
    pq.write_table(_scales(training, pipeline.numbers), model / "numbers.parquet")
    encoder = Encoder.read(model)
    encoded = {name: encoder.encode(rows) for name, rows in read.items()}
    for name, rows in read.items():
        _write(*encoded[name], rows, settings.shards, folder / f"{name}.parquet")
    days = (training["as_of_date"].cast(pa.int32()).to_numpy() - parts.training.start.toordinal() + EPOCH).astype(np.int64)
    plan = Plan(
        numbers=len(encoder.numbers) + len(encoder.indicated),
        indicators=tuple((int(column), len(encoder.numbers) + place) for place, column in enumerate(encoder.indicated)),
        categories=tuple(len(vocabulary) + 1 for vocabulary in encoder.vocabularies.values()),
        number_weights=weights_of_numbers(encoded["training"][0], days, settings.day_discount),
        category_weights=weights_of_categories(encoded["training"][1], days, settings.day_discount),
        base_rate=base_rate,
        **{name: getattr(settings, name) for name in Plan.__dataclass_fields__ if hasattr(settings, name)},
    )
    plan.write(folder)
    inputs = [*pipeline.categories, *pipeline.numbers]
    return Prepared(
        plan=plan, rows={name: rows.num_rows for name, rows in read.items()}, example=training.select(inputs).slice(0, 5)
    )


def _named(parts: Parts) -> tuple[tuple[str, Interval], ...]:
    return ("training", parts.training), ("validation", parts.validation), ("holdout", parts.holdout)


def _labelled(pipeline: Pipeline, pinned: Pinned, days: Interval, part: str) -> pa.Table:
    """A part's examples with their labels: `key`, `as_of_date`, the inputs, `label`, `weight`; in an order that no file layout
    changes.

    The training part leaves out the negatives that the label's sampling leaves out, and the others weigh as much as stands for
    all, 1 in the mean: so what is learned is the true rate. A model is judged on all examples, alike.
    """
    sampled = part == "training"
    inputs = ", ".join(f"e.{_quoted(name)}" for name in (*pipeline.categories, *pipeline.numbers))
    found = pa.table(
        QueryBuilder()
        .register("examples", pinned.examples)
        .register("labels", pinned.labels)
        .execute(
            f"select e.key, e.as_of_date, {inputs}, l.label, {'l.weight' if sampled else '1.0'} as weight "
            "from examples e join labels l on e.key = l.key and e.as_of = l.as_of "
            f"where e.as_of_date >= date '{days.start}' and e.as_of_date < date '{days.end}' "
            f"and l.mature_date >= date '{days.start}' and {'l.weight > 0' if sampled else 'true'} "
            "order by e.as_of, e.key"
        )
        .read_all()
    )
    if not found.num_rows:
        raise DataError(
            f"{pipeline.name} has no labelled example in its {part} days {days} (examples version {pinned.examples.version()}, "
            f"labels version {pinned.labels.version()}). Compute the features of those days, and of the days after them."
        )
    return found


def _vocabularies(training: pa.Table, categories: tuple[str, ...], min_count: int) -> pa.Table:
    """For each category the values seen at least `min_count` times, the most frequent first; id 0, as null, is the unknown."""
    tables = []
    for name in categories:
        counts = pc.value_counts(training[name].cast(pa.string()).drop_null())
        seen = pa.table({"value": counts.field("values"), "count": counts.field("counts")})
        seen = seen.filter(pc.greater_equal(seen["count"], min_count)).sort_by([("count", "descending"), ("value", "ascending")])
        values = pa.chunked_array([pa.nulls(1, pa.string()), *seen["value"].chunks])
        tables.append(
            pa.table({"field": pa.repeat(name, len(values)), "value": values, "id": np.arange(len(values), dtype=np.int32)})
        )
    return pa.concat_tables(tables)


def _scales(training: pa.Table, numbers: tuple[str, ...]) -> pa.Table:
    """The mean and standard deviation of each number over the training days, what is missing or infinite left out."""
    rows = []
    for name in numbers:
        values = training[name].cast(pa.float64()).to_numpy()
        known = values[np.isfinite(values)]
        scale = float(known.std()) if len(known) else 0.0
        rows.append(
            {
                "name": name,
                "mean": float(known.mean()) if len(known) else 0.0,
                "scale": scale if scale > 0 else 1.0,
                "limit": LIMIT,
                "missing": len(known) < len(values),
            }
        )
    schema = pa.schema(
        [("name", pa.string()), *((name, pa.float64()) for name in ("mean", "scale", "limit")), ("missing", pa.bool_())]
    )
    return pa.Table.from_pylist(rows, schema=schema)


def _write(numbers: npt.NDArray[np.float32], ids: npt.NDArray[np.int64], rows: pa.Table, shards: int, path: Path) -> None:
    """The encoded rows, in row groups of nearly equal size: as many as a multiple of the shards, or one for each row."""
    encoded = pa.table(
        {
            "numbers": pa.FixedSizeListArray.from_arrays(pa.array(numbers.reshape(-1)), numbers.shape[1]),
            "ids": pa.FixedSizeListArray.from_arrays(pa.array(ids.reshape(-1)), ids.shape[1]),
            "label": rows["label"].cast(pa.float32()),
            "weight": pc.divide(rows["weight"], pc.mean(rows["weight"])).cast(pa.float32()),
            "day": rows["as_of_date"],
        }
    )
    groups = min(rows.num_rows, shards * -(-rows.num_rows // (shards * ROWS_PER_GROUP)))
    bounds = [rows.num_rows * group // groups for group in range(groups + 1)]
    with pq.ParquetWriter(path, encoded.schema, compression="lz4") as writer:
        for start, end in itertools.pairwise(bounds):
            writer.write_table(encoded.slice(start, end - start), row_group_size=end - start)


def _quoted(name: str) -> str:
    return '"' + name + '"'
