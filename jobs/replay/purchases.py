"""A shop that never was, out of a seed: its purchases and its catalogue, day by day, of any size in bounded memory.

What happens on a day is a function of the shop's figures and the day alone, so any range of days can be made by itself.

Users are skewed (`TOP_SHARE`, then Zipf's law), have a weekday of their own, and come and go for weeks at a time: who bought
lately will buy again. Some records are known hours or days after they happened, some are sent twice, a few are returns or of
guests. Items get a new price, and now and then another category, every four weeks.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import date, timedelta
from decimal import Decimal
from functools import lru_cache
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from jobs.interval import DAY, Interval, midnight
from jobs.replay.damage import damaged
from jobs.replay.history import History, history, known_within
from pipelines.purchases import ITEMS, PURCHASES

START = date(2024, 1, 1)
"""The shop's first day."""

TOP_SHARE = 0.08
"""The first user's share of all purchases that are not guests'."""

SKEW = 0.7
"""The exponent of Zipf's law for the other users."""

LATE, REPEATED, RETURNED, GUESTS, OFFERS = 0.03, 0.02, 0.02, 0.02, 0.1
"""The shares of purchases that are known late, sent twice, sent back, without a user, and below the list price."""

LATEST, AGAIN_WITHIN = timedelta(hours=48), timedelta(hours=24)
"""How late a purchase may be known, and how much later its repeat."""

REACH = 3
"""A record known on a day happened at most so many days before: `LATEST` and `AGAIN_WITHIN` together."""

QUIET = 0.05
"""How much less a user buys while away."""

CHANGES_EVERY = 28
"""Days between two versions of an item."""

COUNTRIES = ("GB", "DE", "FR", "IE", "ES", "NL", "BE", "SE")
CATEGORIES = ("books", "garden", "games", "kitchen", "lamps", "paper", "toys", "tools", "textiles", "tea")

PARTITIONS = 2
"""Partitions of the purchases' topic."""

PIECE = 50_000
"""Purchases that are made and sent at once, unless a single day has more."""

_UTC = pa.timestamp("s", tz="UTC")


@dataclass(frozen=True, kw_only=True, slots=True)
class Shop:
    """How large it is. Two shops with the same figures are the same to the byte."""

    seed: int = 7
    users: int = 2_000
    days: int = 100
    """From `START`; what becomes known after the last of them is left out."""
    events: int = 50_000
    """Purchases in all, repeats not counted."""
    items: int = 300

    def __post_init__(self) -> None:
        least = {"seed": 0, "users": 2, "days": 1, "events": 1, "items": 1}
        for name, lowest in least.items():
            if getattr(self, name) < lowest:
                raise ValueError(f"--{name} is {getattr(self, name)}: it must be at least {lowest}.")

    @property
    def covered(self) -> Interval:
        """The days on which anything becomes known."""
        return Interval(START, START + self.days * DAY)

    def before(self, day: int) -> int:
        """How many purchases happen before the day with this number."""
        return self.events * day // self.days


def pieces(shop: Shop, interval: Interval, broken_every: int) -> Iterator[tuple[Interval, list[tuple[History, int]]]]:
    """What the two topics are to be sent for days of known time, some days at a time, with how many of it are damaged.

    A day's records, damaged ones too, are the same whatever days are asked for with it.
    """
    together: list[date] = []
    for day in interval.days():
        together.append(day)
        made = shop.before((day - START).days + 1) - shop.before((together[0] - START).days)
        if made >= PIECE or day == interval.last:
            each = [_of_day(shop, one, broken_every) for one in together]
            yield (
                Interval.inclusive(together[0], day),
                [
                    (_joined([histories[topic][0] for histories in each]), sum(histories[topic][1] for histories in each))
                    for topic in (0, 1)
                ],
            )
            together = []


def events(shop: Shop, interval: Interval | None = None) -> Iterator[dict[str, Any]]:
    """The purchases known on these days as rows, repeats included, with `known_time`, in its order. None: all days."""
    for day in (interval or shop.covered).days():
        yield from purchases(shop, Interval.inclusive(day, day)).sort_by([("known_time", "ascending")]).to_pylist()


def purchases(shop: Shop, interval: Interval) -> pa.Table:
    """The purchases that are known on these days: the source's fields and `known_time`."""
    first, last = (interval.start - START).days - REACH, (interval.last - START).days
    happened = [_happened(shop, day) for day in range(max(first, 0), min(last, shop.days - 1) + 1)]
    return known_within(pa.concat_tables(happened), interval)


def catalogue(shop: Shop, interval: Interval) -> pa.Table:
    """The versions of items that are known on these days: the source's fields and `known_time`."""
    return pa.concat_tables([_changed(shop, (day - START).days) for day in interval.days()])


def _of_day(shop: Shop, day: date, broken_every: int) -> list[tuple[History, int]]:
    own, number = Interval.inclusive(day, day), (day - START).days
    sold = history(PURCHASES, purchases(shop, own), partitions=PARTITIONS)
    listed = history(ITEMS, catalogue(shop, own), partitions=1)
    changed = shop.items * (1 + number / CHANGES_EVERY) if number else 0
    return [
        damaged(sold, broken_every, after=round(shop.before(number) * (1 + REPEATED))),
        damaged(listed, broken_every, after=round(changed)),
    ]


def _joined(histories: list[History]) -> History:
    return replace(
        histories[0],
        keys=[key for one in histories for key in one.keys],
        values=[value for one in histories for value in one.values],
        times=[time for one in histories for time in one.times],
    )


@dataclass(frozen=True, slots=True)
class _Users:
    """What is settled about each user once and for all."""

    weight: np.ndarray
    country: np.ndarray
    weekday: np.ndarray
    span: np.ndarray
    """Days that they stay, and then stay away."""
    shift: np.ndarray

    def shares(self, day: int) -> np.ndarray:
        """How the purchases of a day spread over the users."""
        away = ((day + self.shift) // self.span) % 2 == 1
        own_day = self.weekday == (START + day * DAY).weekday()
        likely = self.weight * np.where(away, QUIET, 1.0) * np.where(own_day, 3.0, 1.0)
        likely[0] = likely[1:].sum() * TOP_SHARE / (1 - TOP_SHARE)
        return np.asarray(likely / likely.sum())


@lru_cache(maxsize=2)
def _users(shop: Shop) -> _Users:
    random, size = np.random.default_rng([shop.seed, 0]), shop.users
    span = random.integers(10, 41, size)
    return _Users(
        weight=np.arange(1, size + 1) ** -SKEW,
        country=random.choice(len(COUNTRIES), size, p=_zipf(len(COUNTRIES), 1.0)),
        weekday=random.integers(0, 7, size),
        span=span,
        shift=random.integers(0, 2 * span),
    )


# Late records make a day's purchases be asked for again on the days behind it.
@lru_cache(maxsize=REACH + 1)
def _happened(shop: Shop, day: int) -> pa.Table:
    """The purchases of a day, repeats included."""
    random, users = np.random.default_rng([shop.seed, 1, day]), _users(shop)
    size = shop.before(day + 1) - shop.before(day)
    user = random.choice(shop.users, size, p=users.shares(day))
    item = random.choice(shop.items, size, p=_zipf(shop.items, 0.8))
    # The till takes a new price the day after it was announced.
    prices, _ = _versions(shop, _version(shop, day - 1))
    offer = np.where(random.random(size) < OFFERS, 80, 100)
    second = (3600 * random.triangular(7, 18, 22, size)).astype(np.int64)
    quantity = np.where(random.random(size) < RETURNED, -1, random.geometric(0.6, size))
    late = random.random(size) < LATE
    longest = int(LATEST.total_seconds())
    delay = np.where(late, random.integers(600, longest, size), random.integers(0, 60, size))
    again = np.flatnonzero(random.random(size) < REPEATED)
    wait = random.integers(60, int(AGAIN_WITHIN.total_seconds()) - 60, len(again))
    start = int(midnight(START + day * DAY).timestamp())
    once = pa.table(
        {
            "purchase_id": _names(f"{START + day * DAY:%Y%m%d}-", np.arange(size)),
            "user_id": pc.if_else(pa.array(random.random(size) < GUESTS), pa.scalar(None, pa.string()), _names("u", user)),
            "item_id": _names("i", item),
            "quantity": quantity,
            "price": _money(prices[item] * offer // 100),
            "country": pa.array(np.asarray(COUNTRIES)[users.country[user]]),
            "purchased_at": pa.array(start + second).cast(_UTC),
            "known_time": pa.array(start + second + delay).cast(_UTC),
        }
    )
    repeats = once.take(pa.array(again))
    known = pa.array(start + second[again] + delay[again] + wait).cast(_UTC)
    return pa.concat_tables([once, repeats.set_column(len(repeats.column_names) - 1, "known_time", known)])


def _changed(shop: Shop, day: int) -> pa.Table:
    """The versions of items that begin on a day: all at first, later each item's every four weeks."""
    number = np.arange(shop.items)
    version = _version(shop, day)
    fresh = number if day == 0 else number[version != _version(shop, day - 1)]
    prices, categories = _versions(shop, version)
    changed = int(midnight(START + day * DAY).timestamp()) + (fresh % 24 * 3600 if day else 0 * fresh)
    names = _names("i", fresh)
    return pa.table(
        {
            "change_id": pc.binary_join_element_wise(names, _names("", version[fresh]), "-"),
            "item_id": names,
            "name": _names("Item ", fresh),
            "category": pa.array(np.asarray(CATEGORIES)[categories[fresh]]),
            "list_price": prices[fresh] / 100,
            "changed_at": pa.array(changed).cast(_UTC),
            "known_time": pa.array(changed + 1).cast(_UTC),
        }
    )


def _version(shop: Shop, day: int) -> np.ndarray:
    """The version of each item that holds at the end of a day."""
    first = 1 + np.arange(shop.items) % CHANGES_EVERY
    return np.asarray(np.maximum((day - first) // CHANGES_EVERY + 1, 0))


def _versions(shop: Shop, version: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The list price in pence and the number of the category of each item, by its version."""
    random = np.random.default_rng([shop.seed, 2])
    price, category = random.lognormal(6.5, 0.8, shop.items), random.integers(0, len(CATEGORIES), shop.items)
    for number in np.unique(version):
        drawn = np.random.default_rng([shop.seed, 3, int(number)])
        factor, moved = drawn.uniform(0.9, 1.2, shop.items), drawn.random(shop.items) < 0.1
        price = np.where(version == number, price * factor, price)
        category = np.where((version == number) & moved, (category + number) % len(CATEGORIES), category)
    return np.maximum(50, price.astype(np.int64)), category


def _zipf(size: int, exponent: float) -> np.ndarray:
    share = np.arange(1, size + 1) ** -exponent
    return np.asarray(share / share.sum())


def _names(prefix: str, numbers: np.ndarray) -> pa.Array:
    return pc.binary_join_element_wise(prefix, pa.array(numbers).cast(pa.string()), "")


def _money(pence: np.ndarray) -> pa.Array:
    hundredth = pa.scalar(Decimal("0.01"), pa.decimal128(3, 2))
    return pc.multiply(pa.array(pence).cast(pa.decimal128(19, 0)), hundredth)
