"""What is computed: one file for each pipeline, in the language of `pipelines.declare`.

A file `pipelines/NAME.py` that holds `PIPELINE = Pipeline(name="NAME", ...)` is a pipeline; nothing else registers it.
Only the standard library is imported here, since Airflow reads these files each time it parses its DAGs.
"""

import difflib
import importlib
from pathlib import Path

from pipelines.declare import Pipeline, Source

_FOLDER = Path(__file__).parent


def names() -> list[str]:
    """The pipelines that are declared, in alphabetical order."""
    return sorted(path.stem for path in _FOLDER.glob("*.py") if path.stem not in ("__init__", "declare"))


def load(name: str) -> Pipeline:
    """The pipeline called `name`. Raises ValueError, with what is near, where there is none."""
    if name not in names():
        raise ValueError(f"there is no pipeline {name!r}{near(name, names())}.")
    declared = importlib.import_module(f"pipelines.{name}").PIPELINE
    if declared.name != name:
        raise ValueError(f"pipelines/{name}.py declares the name {declared.name!r}: the file and the name must be the same.")
    return declared  # type: ignore[no-any-return]


def sources() -> dict[str, Source]:
    """Each declared source by its name. Raises ValueError where two pipelines declare one name differently."""
    found: dict[str, Source] = {}
    for name in names():
        for source in load(name).sources:
            if found.setdefault(source.name, source) != source:
                raise ValueError(
                    f"source {source.name!r} is declared twice, differently: share one declaration between the pipelines."
                )
    return found


def near(name: str, known: list[str]) -> str:
    """The tail of a message about an unknown name: what is near it, and what there is."""
    close = difflib.get_close_matches(name, known, n=1)
    hint = f"; did you mean {close[0]!r}" if close else ""
    return f"{hint}; known: {', '.join(known) or 'none'}"
