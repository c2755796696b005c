"""The flights of 2013 reach Kafka once, at the right instants, and become the rows that the pipeline declares."""

import itertools
import json
import subprocess
import sys
from argparse import Namespace
from dataclasses import replace
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from confluent_kafka.admin import AdminClient

from jobs import batches, lake, record
from jobs.command import Job
from jobs.decode import decode
from jobs.errors import DataError, UsageError
from jobs.interval import DAY, Interval
from jobs.kafka import Cluster, client_settings
from jobs.replay import flights, send, stage
from jobs.replay.damage import damaged
from pipelines.flight_delays import LANDED, SCHEDULED, WEATHER

DAYS = Interval.inclusive(date(2013, 3, 9), date(2013, 3, 10))
"""Clocks in New York go forward on the second of these days."""

RECORDS = {"flights.scheduled": 1940, "flights.landed": 1824, "weather.observed": 144}
"""Counted by a walk over the minutes after each departure until the clocks at the destination show the arrival."""


def test_flights_land_when_the_clocks_at_their_destination_say_so() -> None:
    """The data set's own arrival times, local and without a date, were not used: they are the proof of what was derived."""
    folder = flights._folder()
    found = flights._flights(folder, flights._csv(folder / "flights.csv.zip"))
    landed = flights._landed(found)
    zones = flights._zones(found["dest"], flights._csv(folder / "airports.csv"))
    wrong = []
    for zone in pc.unique(zones).to_pylist():
        here = pc.and_(pc.equal(zones, zone), pc.equal(landed["status"], "landed"))
        local = pc.local_timestamp(landed["landed_at"].filter(here).cast(pa.timestamp("s", tz=zone)))
        shown = pc.add(pc.multiply(pc.hour(local), 100), pc.minute(local))
        told = found["arr_time"].filter(here)
        differs = pc.not_equal(shown, pc.if_else(pc.equal(told, 2400), 0, told))
        wrong += found["flight_id"].filter(here).filter(differs).to_pylist()
    # Of 327,346: it landed after the clocks had gone forward, and the airline's delay was counted from the old time.
    assert wrong == ["20130309-B6-35-JFK-2145"]
    assert sorted(landed.group_by("status").aggregate([([], "count_all")]).to_pylist(), key=lambda row: row["status"]) == [
        {"status": "cancelled", "count_all": 8255},
        {"status": "diverted", "count_all": 1175},
        {"status": "landed", "count_all": 327346},
    ]
    assert len(pc.unique(found["flight_id"])) == len(found) == 336_776


@pytest.mark.parametrize(
    ("departure", "clock", "zone", "arrival"),
    [
        ("2013-01-01T10:15", 819, "America/Chicago", "2013-01-01T14:19"),
        ("2013-01-02T02:00", 30, "America/New_York", "2013-01-02T05:30"),
        ("2013-01-01T15:00", 1455, "Pacific/Honolulu", "2013-01-02T00:55"),
        ("2013-03-10T06:30", 330, "America/New_York", "2013-03-10T07:30"),
        ("2013-03-10T06:30", 230, "America/New_York", "2013-03-10T07:00"),
        ("2013-11-03T04:50", 130, "America/New_York", "2013-11-03T05:30"),
        ("2013-11-03T05:40", 130, "America/New_York", "2013-11-03T06:30"),
        ("2013-11-03T04:00", 200, "America/New_York", "2013-11-03T07:00"),
    ],
)
def test_a_local_arrival_is_the_first_instant_after_departure(departure: str, clock: int, zone: str, arrival: str) -> None:
    instant = pa.chunked_array([pa.array([datetime.fromisoformat(departure + "+00:00")], pa.timestamp("s", tz="UTC"))])
    found = flights.scheduled_arrival(instant, pa.chunked_array([[clock]]), pa.chunked_array([[zone]]))
    assert found.to_pylist() == [datetime.fromisoformat(arrival + "+00:00")]


def test_two_days_hold_what_was_known_on_them() -> None:
    found = {history.source.topic: history for history in flights.histories(DAYS)}
    assert {topic: len(history) for topic, history in found.items()} == RECORDS
    start, end = (int(datetime(2013, 3, day, tzinfo=UTC).timestamp() * 1000) for day in (9, 11))
    for history in found.values():
        assert history.times == sorted(history.times)
        assert start <= history.times[0] <= history.times[-1] < end
        # Each record fits its source's contract, by the block and one by one.
        assert decode(history.source, history.values).rejected == {}
        assert record.read(history.source, history.values[0])
    first = json.loads(found["flights.scheduled"].values[0])
    known = datetime.fromtimestamp(found["flights.scheduled"].times[0] / 1000, UTC)
    assert (known.date(), first["scheduled_departure"][:10]) == (date(2013, 3, 9), "2013-03-12")


def test_the_days_covered_are_those_on_which_anything_is_known() -> None:
    ends = flights.COVERED.start, flights.COVERED.last
    assert all(sum(map(len, flights.histories(Interval.inclusive(day, day)))) for day in ends)
    for beyond in (Interval.inclusive(date(2012, 1, 1), ends[0] - DAY), Interval.inclusive(ends[1] + DAY, date(2015, 1, 1))):
        assert [len(history) for history in flights.histories(beyond)] == [0, 0, 0]


@pytest.mark.parametrize(("first", "last"), [(date.min, date(1, 1, 2)), (date(2012, 1, 1), date(2012, 12, 28))])
def test_days_that_the_data_set_does_not_cover_are_refused_before_anything_is_asked(first: date, last: date) -> None:
    options = Namespace(dataset="flights", broken_every=0, again=False, json=True)
    with pytest.raises(UsageError, match="the data are of 2012-12-29 to 2014-01-01"):
        stage.run(Job(command="replay", options=options, run_id="run", interval=Interval.inclusive(first, last)))
    with pytest.raises(UsageError, match="the data are of"):
        flights.covered(Interval.inclusive(date(2014, 1, 2), date(9999, 12, 30)))


def test_days_that_the_data_set_covers_in_part_are_cut_and_it_says_so(caplog: pytest.LogCaptureFixture) -> None:
    assert flights.covered(Interval.inclusive(date.min, date(2013, 1, 1))) == Interval(date(2012, 12, 29), date(2013, 1, 2))
    assert flights.covered(Interval.inclusive(date(2014, 1, 1), date(9999, 12, 30))) == Interval(
        date(2014, 1, 1), date(2014, 1, 2)
    )
    assert [record.levelname for record in caplog.records] == ["WARNING"] * 2
    assert flights.covered(DAYS) == DAYS
    assert len(caplog.records) == 2


def test_every_kind_of_damage_is_a_dead_letter_and_nothing_else_changes() -> None:
    for history in flights.histories(DAYS):
        broken, count = damaged(history, 7)
        assert count == len(history) // 7
        decoded = decode(history.source, broken.values)
        assert list(decoded.rejected) == [8 * turn + 7 for turn in range(count)]
        assert len(set(decoded.rejected.values())) == 5
        assert [broken.values[index] for index in decoded.index.to_pylist()] == history.values
        assert damaged(history, 7)[0] == broken
        assert damaged(history, 0) == (history, 0)


@pytest.fixture
def replay(kafka: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The command, on a broker without the topics."""
    monkeypatch.setenv("KAFKA_BOOTSTRAP_SERVERS", kafka)
    monkeypatch.setenv("PENSTOCK_LAKE", str(tmp_path / "lake"))
    _drop()

    def run(days: Interval = DAYS, *, broken_every: int = 0, again: bool = False) -> dict[str, Any]:
        options = Namespace(dataset="flights", broken_every=broken_every, again=again, json=True)
        job = Job(command="replay", options=options, run_id="run", interval=days)
        stage.run(job)
        return job.report

    yield run
    _drop()


def _drop() -> None:
    admin = AdminClient(client_settings())
    there = [topic for topic in RECORDS if topic in admin.list_topics(timeout=10).topics]
    for future in admin.delete_topics(there).values() if there else ():
        future.result(10)


def _held() -> dict[str, int]:
    cluster = Cluster()
    found = cluster.bounds(cluster.topics(RECORDS).values())
    return {topic: sum(bounds.end for bounds in partitions.values()) for topic, partitions in found.items()}


@pytest.mark.kafka
def test_a_replay_sends_what_is_missing_and_nothing_twice(replay: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    # Cut off in the middle, it leaves the beginning of each partition's sequence.
    whole = send._in_order
    with monkeypatch.context() as cut:
        cut.setattr(send, "_in_order", lambda work: itertools.islice(whole(work), 1_000))
        replay(broken_every=100)
    assert sum(_held().values()) == 1_000
    wanted = {topic: count + count // 100 for topic, count in RECORDS.items()}
    report = replay(broken_every=100)
    assert report["sent"] == sum(wanted.values()) - 1_000
    assert _held() == wanted
    report = replay(broken_every=100)
    assert report["sent"] == 0
    assert report["topics"]["flights.landed"] == {
        "records": wanted["flights.landed"],
        "broken": RECORDS["flights.landed"] // 100,
        "skipped": wanted["flights.landed"],
    }
    assert _held() == wanted
    # The next day goes on behind; one before it would not.
    replay(Interval.inclusive(date(2013, 3, 11), date(2013, 3, 11)))
    assert replay(broken_every=100)["sent"] == 0
    with pytest.raises(DataError, match="in order of time"):
        replay(Interval.inclusive(date(2013, 3, 8), date(2013, 3, 8)))
    before = _held()
    assert replay(again=True)["sent"] == sum(RECORDS.values())
    assert {topic: held - before[topic] for topic, held in _held().items()} == RECORDS


@pytest.mark.kafka
def test_a_replay_over_other_records_of_its_days_is_refused(replay: Any) -> None:
    """Counts alone would let it skip the first days, and send the later ones again."""
    replay()
    before = _held()
    around = Interval.inclusive(DAYS.start - 2 * DAY, DAYS.last + DAY)
    with pytest.raises(
        DataError, match=r"flights.scheduled, partition 0, .* at offset 0 201303\d\d-.* known at 2013-03-09.*--again"
    ):
        replay(around)
    with pytest.raises(DataError, match=r"at offset \d+ .* --broken-every"):
        replay(broken_every=100)
    assert _held() == before
    assert replay()["sent"] == 0
    # A range within, and one that goes on behind.
    assert replay(Interval.inclusive(DAYS.last, DAYS.last))["sent"] == 0
    assert replay(Interval.inclusive(DAYS.last, DAYS.last + DAY))["sent"] > 0


@pytest.mark.kafka
def test_a_replay_without_the_damage_that_is_there_is_refused(replay: Any) -> None:
    replay(broken_every=50)
    before = _held()
    for other in (0, 49, 51):
        with pytest.raises(DataError, match="holds other records of 2013-03-09 to 2013-03-10 than this replay sends"):
            replay(broken_every=other)
    # Where key and time are the same, the value tells.
    history = flights.histories(DAYS)[2]
    changed = replace(damaged(history, 50)[0], values=[value + b" " for value in damaged(history, 50)[0].values])
    with pytest.raises(DataError, match=r"offset 0 .* with another value"):
        send.lanes(cluster := Cluster(), cluster.topics([WEATHER.topic])[WEATHER.topic], changed, DAYS, again=False)
    assert _held() == before
    assert replay(broken_every=50)["sent"] == 0


@pytest.mark.kafka
@pytest.mark.usefixtures("replay")
def test_replayed_flights_become_events_by_the_command_line() -> None:
    """As processes, since some libraries abort at exit when all is done."""
    _penstock("replay", "flights", "--from", "2013-03-09", "--to", "2013-03-10", "--broken-every", "100")
    told = _penstock("ingest", "flight_delays")["sources"]
    assert {source.topic: told[source.name]["good"] for source in (SCHEDULED, LANDED, WEATHER)} == RECORDS
    assert {source.topic: told[source.name]["dead"] for source in (SCHEDULED, LANDED, WEATHER)} == {
        topic: count // 100 for topic, count in RECORDS.items()
    }
    again = _penstock("ingest", "flight_delays")["sources"]
    assert [(one["good"], one["dead"], one["batches"]) for one in again.values()] == [(0, 0, 0)] * 3
    table = lake.load(batches.events_uri(LANDED))
    assert table is not None
    # Nobody hears of a landing before it.
    counted = lake.query(table, "select count(*) as n from t where known_time = event_time and event_time = landed_at")
    assert counted.column("n").to_pylist() == [RECORDS["flights.landed"]]
    assert _penstock("ingest", "weather_observed")["exit_code"] == 0


def _penstock(*arguments: str) -> dict[str, Any]:
    done = subprocess.run([sys.executable, "-m", "jobs.cli", *arguments, "--json"], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)  # type: ignore[no-any-return]
