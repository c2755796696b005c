"""The model's inputs in bounded batches: what promotion and scoring give to a model.

A model's scores move in the last digits with the batch in which a row stands. So rows are read day by day, in the order
of their keys, in batches of one size: the same day gives the same scores in each run, alone or within a range.
"""

from collections.abc import Iterator
from datetime import date

import pyarrow as pa
from deltalake import DeltaTable, QueryBuilder

from jobs import lake, versions
from jobs.errors import DataError, RetryError
from pipelines.declare import Pipeline

ROWS = 32_768
"""Rows in one batch: some tens of megabytes for a hundred inputs."""


def examples(pipeline: Pipeline, version: int | None = None, *, name: str | None = None) -> DeltaTable:
    """The examples as they stand, or at `version`: of this declaration, or the table called `name`, as `examples_v2`.

    Raises RetryError where there are none yet, DataError where they lack an input that is declared.
    """
    uri = versions.uri(pipeline, "examples") if name is None else lake.uri(pipeline.name, name)
    table = lake.load(uri, version)
    if table is None:
        raise RetryError(f"{pipeline.name} has no examples yet. Run `penstock features {pipeline.name}` first.")
    present = {field.name for field in table.schema().fields}
    lacking = [name for name in (*pipeline.categories, *pipeline.numbers) if name not in present]
    if lacking:
        raise DataError(
            f"the examples of {pipeline.name} (version {table.version()}) lack {', '.join(lacking)}, which it declares. "
            f"Compute them again: `penstock features {pipeline.name}`."
        )
    return table


def of_day(pipeline: Pipeline, table: DeltaTable, day: date) -> Iterator[pa.Table]:
    """The examples of one `as_of_date`: `key`, `as_of` and the inputs; batches of ROWS rows, the last one of what is left."""
    sql = f"select {_columns(pipeline)} from e where e.as_of_date = date '{day}' order by e.key, e.as_of"
    return _batches(QueryBuilder().register("e", table), sql)


def of_day_labelled(
    pipeline: Pipeline, table: DeltaTable, labels: DeltaTable, day: date, matured: tuple[date, date]
) -> Iterator[pa.Table]:
    """As `of_day`, but only examples with a label, joined by key and `as_of`, and `label` as a last column.

    `matured` are the first and last `mature_date` on which these labels can lie: only those partitions are read.
    """
    sql = (
        f"select {_columns(pipeline)}, l.label from e join l on l.key = e.key and l.as_of = e.as_of "
        f"where e.as_of_date = date '{day}' and l.mature_date >= date '{matured[0]}' and l.mature_date <= date '{matured[1]}' "
        "order by e.key, e.as_of"
    )
    return _batches(QueryBuilder().register("e", table).register("l", labels), sql)


def _columns(pipeline: Pipeline) -> str:
    return ", ".join(f'e."{name}"' for name in ("key", "as_of", *pipeline.categories, *pipeline.numbers))


def _batches(builder: QueryBuilder, sql: str) -> Iterator[pa.Table]:
    reader = pa.RecordBatchReader.from_stream(builder.execute(sql))
    plain = pa.schema([(field.name, pa.string() if field.type == pa.string_view() else field.type) for field in reader.schema])
    kept: list[pa.RecordBatch] = []
    rows = 0
    for batch in reader:
        kept.append(batch)
        rows += batch.num_rows
        while rows >= ROWS:
            table = pa.Table.from_batches(kept, schema=reader.schema)
            yield table.slice(0, ROWS).cast(plain)
            rows -= ROWS
            kept = table.slice(ROWS).to_batches()
    if rows:
        yield pa.Table.from_batches(kept, schema=reader.schema).cast(plain)
