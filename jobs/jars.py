"""The JVM's libraries, pinned in jars.toml and fetched once for all clones on a machine. `python -m jobs.jars` gets them all.

Spark's own resolver fetches, so no Maven has to be installed. It needs Java and takes 20 to 40 s for a set; later calls only
list a folder of `~/.cache/penstock/jars`. `DEFAULT_ARTIFACT_REPOSITORY`, which Spark reads, names a mirror of Maven Central.
"""

import contextlib
import fcntl
import hashlib
import importlib.metadata
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from jobs.errors import RetryError, UsageError


@dataclass(frozen=True, kw_only=True, slots=True)
class JarSet:
    """Libraries that are resolved and used together."""

    name: str
    coordinates: tuple[str, ...]
    """Maven's `group:artifact:version`; what these depend on follows."""
    beside_spark: bool
    """Whether they join the pyspark wheel's jars in one JVM. Then a library of the wheel wins over any other version of it."""
    exclude: tuple[str, ...] = ()
    """`group:artifact` left out of the resolution."""

    @property
    def folder(self) -> Path:
        """Where the set lies. Its name changes with anything that changes its content, the wheel's version included."""
        inputs = [self.coordinates, self.exclude, self.beside_spark, importlib.metadata.version("pyspark")]
        digest = hashlib.sha256(json.dumps(inputs).encode()).hexdigest()[:12]
        return cache_folder() / f"{self.name}-{digest}"


def declared() -> dict[str, JarSet]:
    """The sets of jars.toml, by name."""
    tables = tomllib.loads(Path(__file__).with_suffix(".toml").read_text())
    return {
        name: JarSet(
            name=name,
            coordinates=tuple(table["coordinates"]),
            beside_spark=table["beside_spark"],
            exclude=tuple(table.get("exclude", ())),
        )
        for name, table in tables.items()
    }


def fetch(name: str) -> list[Path]:
    """The jars of a set, sorted by name; downloads them where this machine has none yet.

    Raises UsageError for an unknown set, RetryError where the download failed (it leaves nothing half done).
    """
    sets = declared()
    if name not in sets:
        raise UsageError(f"There is no set of jars called {name!r}: jars.toml declares {', '.join(sorted(sets))}.")
    folder = sets[name].folder
    if not folder.is_dir():
        with _alone():
            if not folder.is_dir():
                _download(sets[name])
    return sorted(folder.glob("*.jar"))


def wheel_jars() -> Path:
    """The folder of jars that the pyspark wheel brings."""
    return _spark_home() / "jars"


def cache_folder() -> Path:
    """Where all sets lie, for all clones of one user's machine."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "penstock" / "jars"


def artifact(jar: str) -> str:
    """The library in a jar's file name, as the wheel writes it: `slf4j-api-2.0.17.jar` gives `slf4j-api`."""
    return re.sub(r"-\d.*$", "", jar)


def _spark_home() -> Path:
    spec = importlib.util.find_spec("pyspark")
    if spec is None or spec.origin is None:
        raise UsageError(
            "pyspark is not installed, and it brings the resolver of jars: install the extra `spark`, or run `make setup`."
        )
    return Path(spec.origin).parent


@contextlib.contextmanager
def _alone() -> Iterator[None]:
    """Lets one process download at a time, and clears what a killed one left behind."""
    cache_folder().mkdir(parents=True, exist_ok=True)
    with (cache_folder() / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        for left in cache_folder().glob("*.part"):
            shutil.rmtree(left)
        yield


def _download(jars: JarSet) -> None:
    part = Path(tempfile.mkdtemp(prefix=f"{jars.name}-", suffix=".part", dir=cache_folder()))
    try:
        resolved = _resolve(jars, part)
        if jars.beside_spark:
            present = {artifact(path.name) for path in wheel_jars().glob("*.jar")}
            # The resolver writes `group_artifact-version.jar`, and groups have no underscore.
            resolved = [path for path in resolved if artifact(path.name.partition("_")[2]) not in present]
        done = part / "done"
        done.mkdir()
        for path in resolved:
            path.rename(done / path.name)
        # The rename publishes the whole set at once: a folder of the final name is complete.
        done.rename(jars.folder)
    finally:
        shutil.rmtree(part, ignore_errors=True)


def _resolve(jars: JarSet, work: Path) -> list[Path]:
    """Runs an empty Spark program for the sake of its `--packages`, which fills `work`."""
    program = work / "empty.py"
    program.touch()
    command = [str(_spark_home() / "bin" / "spark-submit"), "--packages", ",".join(jars.coordinates)]
    if jars.exclude:
        command += ["--exclude-packages", ",".join(jars.exclude)]
    command += ["--conf", f"spark.jars.ivy={work}", str(program)]
    environment = os.environ | {
        "SPARK_HOME": str(_spark_home()),
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
    }
    log = cache_folder() / f"{jars.name}.log"
    with log.open("w") as output:
        status = subprocess.run(command, env=environment, stdin=subprocess.DEVNULL, stdout=output, stderr=output).returncode
    resolved = sorted((work / "jars").glob("*.jar"))
    if status != 0 or not resolved:
        raise RetryError(
            f"The jars of {jars.name!r} ({', '.join(jars.coordinates)}) could not be fetched from Maven Central: check the "
            f"network, or name a mirror in DEFAULT_ARTIFACT_REPOSITORY, and try again; the resolver's words are in {log}."
        )
    return resolved


def main() -> None:
    """Fetches every set."""
    for name in declared():
        try:
            paths = fetch(name)
        except RetryError as error:
            raise SystemExit(f"{error}") from None
        size = sum(path.stat().st_size for path in paths) / 1e6
        print(f"jars: {name}, {len(paths)} files, {size:.0f} MB in {paths[0].parent if paths else cache_folder()}")


if __name__ == "__main__":
    main()
