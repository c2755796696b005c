"""What one event gives to the aggregates of a group of sets, and what is made of it in the end.

Three kinds, by how their parts merge:

- *sums* (count, sum, mean, rate, stddev): whole numbers or decimals that are added when an event enters a window and taken away
  when it leaves: exact, in whatever order;
- *different values* (distinct): a value counts while any event that has it is in the window;
- *states* (min, max, first, last, last_k, approx_distinct): they merge, but nothing can be taken out of them.
"""

from dataclasses import dataclass
from datetime import timedelta
from typing import Literal

from pyspark.sql import Column
from pyspark.sql import functions as fn
from pyspark.sql.types import DataType, DecimalType, DoubleType, FloatType

from jobs.features.events import POSITION
from pipelines.declare import Aggregate

EVENTS = "1L"
"""The sum that counts all events: an entity without any in its longest window has no row."""
WIDE = 18
"""The most digits of a decimal that is added up as a whole number of 64 bits."""
SKETCH = 12
"""The base-2 logarithm of a HyperLogLog sketch's registers: a standard error of 1.6 percent."""

Kind = Literal["min", "max", "first", "last", "last_k", "approx_distinct"]


@dataclass(frozen=True, slots=True)
class Number:
    """An exact number of one event, as SQL, and how many decimals the whole number stands for."""

    sql: str
    scale: int = 0
    wide: bool = False
    """Whether it is a decimal already, as its digits would not fit 64 bits."""


@dataclass(frozen=True, slots=True)
class State:
    """A merging state of one event's value."""

    kind: Kind
    sql: str
    k: int = 0

    def start(self) -> Column:
        """The state of the events of a group of rows."""
        value = fn.expr(self.sql)
        if self.kind == "approx_distinct":
            return fn.hll_sketch_agg(value, SKETCH)
        return self._merge(fn.array(self._placed()) if self.kind == "last_k" else self._single(), fn.isnotnull(value))

    def merge(self, state: str, where: Column) -> Column:
        """The state of the states in the column `state`, of the rows for which a condition holds."""
        if self.kind == "approx_distinct":
            return fn.hll_union_agg(fn.when(where, fn.col(state)))
        return self._merge(fn.col(state), where)

    def over(self, where: Column) -> Column:
        """The state, at once, of the events for which a condition holds."""
        if self.kind == "approx_distinct":
            return fn.hll_sketch_agg(fn.when(where, fn.expr(self.sql)), SKETCH)
        single = fn.array(self._placed()) if self.kind == "last_k" else self._single()
        return self._merge(single, where & fn.isnotnull(fn.expr(self.sql)))

    def figure(self, state: Column) -> Column:
        """What the state says."""
        match self.kind:
            case "approx_distinct":
                # A sketch that was never merged estimates by the order in which its values came; of a merged one only they count.
                return fn.coalesce(fn.hll_sketch_estimate(fn.hll_union(state, state)), fn.lit(0))
            case "first" | "last":
                return state["value"]
            case "last_k":
                return fn.when(fn.size(state) > 0, fn.transform(state, lambda one: one["value"]))
            case _:
                return state

    def _single(self) -> Column:
        return self._placed() if self.kind in ("first", "last") else fn.expr(self.sql)

    def _placed(self) -> Column:
        return fn.struct("event_time", *POSITION, fn.expr(self.sql).alias("value"))

    def _merge(self, state: Column, where: Column) -> Column:
        state = fn.when(where, state)
        match self.kind:
            case "min" | "first":
                return fn.min(state)
            case "last_k":
                return fn.slice(fn.sort_array(fn.flatten(fn.collect_list(state)), asc=False), 1, self.k)
            case _:
                return fn.max(state)


@dataclass(frozen=True, slots=True)
class Parts:
    """What an aggregate is made of: its sums (value, and what it is divided by, and the squares), or a value, or a state."""

    aggregate: Aggregate
    value: Number | None = None
    divisor: Number | None = None
    squares: Number | None = None
    distinct: str | None = None
    state: State | None = None

    @property
    def sums(self) -> tuple[Number, ...]:
        """Those there are."""
        return tuple(number for number in (self.value, self.divisor, self.squares) if number is not None)


def parts(aggregate: Aggregate, type_: DataType | None) -> Parts:
    """The parts of an aggregate whose expression has the given type; None for count."""
    # On a line of its own: an expression may end with a comment.
    where = f"({aggregate.where}\n)" if aggregate.where else "true"
    of = f"({aggregate.of}\n)"
    known = Number(f"if({where} and {of} is not null, 1L, 0L)")
    match aggregate.function:
        case "count":
            return Parts(aggregate, value=Number(f"if({where}, 1L, 0L)" if aggregate.where else EVENTS))
        case "rate":
            return Parts(aggregate, value=Number(f"if({where} and {of}, 1L, 0L)"), divisor=known)
        case "sum":
            return Parts(aggregate, value=_number(aggregate, type_, where))
        case "mean":
            return Parts(aggregate, value=_number(aggregate, type_, where), divisor=known)
        case "stddev":
            value = _number(aggregate, type_, where)
            plain = f"cast({value.sql} as decimal(19,0))"
            squares = Number(f"cast({plain} * {plain} as decimal(38,0))", wide=True)
            return Parts(aggregate, value=value, divisor=known, squares=squares)
        case "distinct":
            return Parts(aggregate, distinct=f"if({where}, {of}, null)")
        case "approx_distinct":
            text = of if type_ is not None and type_.simpleString() in ("int", "bigint", "string") else f"cast({of} as string)"
            return Parts(aggregate, state=State("approx_distinct", f"if({where}, {text}, null)"))
        case "first" | "last" | "last_k":
            value_of = f"cast({of} as {'string' if aggregate.type == 'string' else 'double'})"
            return Parts(aggregate, state=State(aggregate.function, f"if({where}, {value_of}, null)", aggregate.k or 0))
        case "min" | "max":
            return Parts(aggregate, state=State(aggregate.function, f"if({where}, {of}, null)"))


def _number(aggregate: Aggregate, type_: DataType | None, where: str) -> Number:
    """The expression as a whole number: a decimal without its point; a float is fixed to its scale first."""
    of = f"({aggregate.of}\n)"
    if isinstance(type_, (DoubleType, FloatType)):
        of, type_ = f"cast({of} as decimal({WIDE},{aggregate.scale or 0}))", DecimalType(WIDE, aggregate.scale or 0)
    if not isinstance(type_, DecimalType):
        return Number(f"if({where}, cast({of} as bigint), null)")
    if type_.precision > WIDE:
        return Number(f"if({where}, cast({of} as decimal(38,{type_.scale})), null)", type_.scale, wide=True)
    factor = f"cast(1{'0' * type_.scale} as decimal({type_.scale + 1},0))"
    return Number(f"if({where}, cast({of} * {factor} as bigint), null)", type_.scale)


def figure(found: Parts, sums: dict[Number, Column], distinct: Column | None, state: Column | None) -> Column:
    """The aggregate, from the sums of its parts in one window, how many different values there are, or the state."""
    if found.state is not None:
        assert state is not None
        return found.state.figure(state)
    if found.distinct is not None:
        assert distinct is not None
        return distinct
    assert found.value is not None
    total = sums[found.value]
    if found.divisor is None:
        return _exact(found.value, total)
    count = sums[found.divisor]
    if found.squares is None:
        return fn.when(count > 0, _exact(found.value, total).cast("double") / count.cast("double"))
    # The sums are exact, so that nothing cancels out: n * squares - sum * sum over n * (n - 1).
    n, exact = count.cast("decimal(19,0)"), total.cast("decimal(19,0)")
    variance = (n * sums[found.squares] - exact * exact).cast("double") / (count.cast("double") * (count - 1).cast("double"))
    return fn.when(count > 1, fn.sqrt(variance) / fn.lit(float(10**found.value.scale)))


def _exact(number: Number, total: Column) -> Column:
    """A sum with its point."""
    if number.wide or not number.scale:
        return total
    point = fn.expr(f"cast({'0.' + '0' * (number.scale - 1) + '1'} as decimal({number.scale + 1},{number.scale}))")
    return (total.cast("decimal(19,0)") * point).cast(f"decimal(38,{number.scale})")


def hours(window: timedelta) -> int:
    """A window's length, as its columns are told apart by it."""
    return window // timedelta(hours=1)
