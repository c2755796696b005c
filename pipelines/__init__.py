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
    return sorted(path.stem for path in _FOLDER.glob("[!_]*.py") if path.stem != "declare")


def load(name: str) -> Pipeline:
    """The pipeline called `name`.

    Raises ValueError: with what is near, where there is none; with the file and what is wrong, where it can't be read.
    """
    if name not in names():
        raise ValueError(f"there is no pipeline {name!r}{near(name, names())}.")
    file = f"pipelines/{name}.py"
    try:
        module = importlib.import_module(f"pipelines.{name}")
    except ValueError as wrong:
        raise ValueError(f"{file}: {wrong}") from wrong
    except Exception as wrong:
        raise ValueError(f"{file} can't be imported ({type(wrong).__name__}: {wrong}): correct it, or take it away.") from wrong
    declared = getattr(module, "PIPELINE", None)
    if not isinstance(declared, Pipeline):
        held = f"PIPELINE is of type {type(declared).__name__}" if hasattr(module, "PIPELINE") else "it has no PIPELINE"
        raise ValueError(f"{file} declares no pipeline ({held}): write PIPELINE = Pipeline(name={name!r}, ...), or move it.")
    if declared.name != name:
        raise ValueError(f"{file} declares the name {declared.name!r}: the file and the name must be the same.")
    return declared


def load_all() -> tuple[dict[str, Pipeline], dict[str, str]]:
    """The pipelines by name, and what is wrong with each that can't be loaded: one broken file leaves the others usable."""
    good: dict[str, Pipeline] = {}
    broken: dict[str, str] = {}
    for name in names():
        try:
            good[name] = load(name)
        except ValueError as wrong:
            broken[name] = str(wrong)
    return good, broken


def sources() -> dict[str, Source]:
    """Each source by its name, of the pipelines that can be loaded; `near` tells of the others.

    Raises ValueError where two pipelines declare one name differently, or one has a pipeline's name, which commands take too.
    """
    found: dict[str, Source] = {}
    for pipeline in load_all()[0].values():
        for source in pipeline.sources:
            if found.setdefault(source.name, source) != source:
                raise ValueError(
                    f"source {source.name!r} is declared twice, differently: share one declaration between the pipelines."
                )
            if source.name in names():
                raise ValueError(f"source {source.name!r} has the name of a pipeline, and commands take either: rename it.")
    return found


def near(name: str, known: list[str]) -> str:
    """The tail of a message about an unknown name: what is near it, what there is, and what could not be looked into."""
    close = difflib.get_close_matches(name, known, n=1)
    hint = f"; did you mean {close[0]!r}" if close else ""
    broken = "".join(f"; not looked into: {wrong.rstrip('.')}" for wrong in load_all()[1].values())
    return f"{hint}; known: {', '.join(dict.fromkeys(known)) or 'none'}{broken}"
