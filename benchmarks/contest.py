"""Whole processes, run in turns, each into a lake of its own: what they took, whether they read all, and how much memory."""

import base64
import json
import os
import pickle
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks.records import PARTITIONS, Load
from jobs.settings import PROJECT

SAMPLE = 0.1
"""Seconds between two looks at the memory."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Contender:
    """One way to read one load."""

    way: str
    """`ours`, `ours on spark`, `bare`, `spark` with the JVM's own flags, `spark, short` with ours; or `audit`, of a table."""
    load: Load

    def command(self) -> list[str]:
        """The process that does it."""
        source = base64.b64encode(pickle.dumps(self.load.source)).decode()
        arguments = {
            "ours": ["benchmarks.ours", source, "local"],
            "ours on spark": ["benchmarks.ours", source, "spark"],
            "bare": ["benchmarks.bare", self.load.topic, str(PARTITIONS)],
            "audit": ["benchmarks.audit", source, str(self.load.records)],
            "spark": ["benchmarks.spark_source", self.load.topic, "long"],
            "spark, short": ["benchmarks.spark_source", self.load.topic, "short"],
        }
        return [sys.executable, "-m", *arguments[self.way]]

    def table(self, lake: Path) -> Path:
        """Where its rows are."""
        return lake / {"ours": "events/load", "ours on spark": "events/load", "bare": "bare"}.get(self.way, "spark")


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """What one run took."""

    whole: float
    """Seconds from the start of the process to its end."""
    session: float
    """Seconds of it until a Spark session was up."""
    work: float
    """Seconds in the work alone, as the process itself tells."""
    peak: float
    """Gigabytes of memory at most, of the process and its descendants; 0 where nobody looked."""


class Contest:
    """Runs contenders against one broker."""

    def __init__(self, state: Path, endpoints: Mapping[str, str]) -> None:
        self._state = state
        foreign = ("SPARK_", "KAFKA_", "PENSTOCK_", "PYSPARK_")
        self._environment = {name: value for name, value in os.environ.items() if not name.startswith(foreign)}
        self._environment |= {
            "KAFKA_BOOTSTRAP_SERVERS": endpoints["KAFKA_BOOTSTRAP_SERVERS"],
            "PENSTOCK_STATE": str(state),
            "SPARK_MASTER": "local[2]",
            "SPARK_LOCAL_IP": "127.0.0.1",
            "PYSPARK_PYTHON": sys.executable,
        }
        self._filled: set[str] = set()

    def rounds(self, contenders: Mapping[str, Contender], count: int, *, memory: bool = False) -> dict[str, list[Outcome]]:
        """Each contender `count` times, in turns, so that what else the machine does meets all of them."""
        for contender in contenders.values():
            self._fill(contender.load)
        found: dict[str, list[Outcome]] = {name: [] for name in contenders}
        for number in range(count):
            for name, contender in contenders.items():
                outcome = self._run(contender, memory=memory)
                found[name].append(outcome)
                grown = f", {outcome.peak:.2f} GB" if memory else ""
                print(
                    f"  round {number + 1}, {name}: {outcome.whole:.2f} s, of which work {outcome.work:.2f} s{grown}", flush=True
                )
        return found

    def _fill(self, load: Load) -> None:
        if load.topic not in self._filled:
            began = time.monotonic()
            load.fill()
            self._filled.add(load.topic)
            print(f"  {load.topic}: filled in {time.monotonic() - began:.0f} s", flush=True)

    def _run(self, contender: Contender, *, memory: bool) -> Outcome:
        with self.lake() as lake:
            outcome = self.run(contender, lake, memory=memory)
            _check(contender, lake)
        return outcome

    @contextmanager
    def lake(self) -> Iterator[Path]:
        """A lake of its own, which goes with the block."""
        with tempfile.TemporaryDirectory(prefix="lake-", dir=self._state) as folder:
            yield Path(folder)

    def run(self, contender: Contender, lake: Path, *, memory: bool = False) -> Outcome:
        """One run of one contender into this lake."""
        log = self._state / "contender.log"
        with log.open("w") as errors:
            began = time.monotonic()
            process = subprocess.Popen(
                contender.command(),
                env=self._environment | {"PENSTOCK_LAKE": str(lake)},
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                cwd=PROJECT,
            )
            peak = _Peak(process.pid) if memory else None
            out, _ = process.communicate()
            whole = time.monotonic() - began
        if process.returncode:
            raise SystemExit(f"benchmarks: {contender.way} ended with {process.returncode}:\n{log.read_text()[-3000:]}")
        told = json.loads(out.splitlines()[-1])
        return Outcome(whole=whole, session=told["session"], work=told["work"], peak=peak.stop() if peak else 0.0)


def _check(contender: Contender, lake: Path) -> None:
    """A contender that did not read everything has won nothing."""
    import pyarrow as pa
    from deltalake import DeltaTable

    actions = pa.table(DeltaTable(str(contender.table(lake))).get_add_actions(flatten=True))
    counts = list(zip(actions.column("num_records").to_pylist(), actions.column("partition.event_date").to_pylist(), strict=True))
    rows, undated = sum(rows for rows, _ in counts), sum(rows for rows, day in counts if day is None)
    if (rows, undated) != (contender.load.records, contender.load.broken):
        wanted = f"{contender.load.records} and {contender.load.broken}"
        raise SystemExit(f"benchmarks: {contender.way} has {rows} rows, {undated} of them without a day, instead of {wanted}.")


class _Peak:
    """The most memory that a process and its descendants had at once: PSS, which counts what they share once."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._most = 0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def stop(self) -> float:
        """The peak in gigabytes."""
        self._over.set()
        self._thread.join()
        return self._most / 1e9

    def _watch(self) -> None:
        import psutil

        while not self._over.wait(SAMPLE):
            try:
                parent = psutil.Process(self._pid)
                family = [parent, *parent.children(recursive=True)]
            except psutil.Error:
                continue
            self._most = max(self._most, sum(map(_pss, family)))


def _pss(process: object) -> int:
    """Bytes of the process's proportional share."""
    try:
        lines = Path(f"/proc/{process.pid}/smaps_rollup").read_text().splitlines()  # type: ignore[attr-defined]
    except OSError:
        return 0
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:")), 0)


def median(outcomes: list[Outcome], of: str = "whole") -> float:
    """The median of one figure."""
    return float(statistics.median(getattr(outcome, of) for outcome in outcomes))
