"""The shape of the project: who may import whom, what may be heavy, and what the README's tree says."""

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

PROJECT = Path(__file__).resolve().parent.parent
FOLDERS = ("dags", "pipelines", "jobs")
STAGES = sorted(path.parent.name for path in (PROJECT / "jobs").glob("*/__init__.py"))
HEAVY = {"airflow", "confluent_kafka", "delta", "duckdb", "kafka", "mlflow", "pandas", "pyspark", "sklearn", "torch"}


def modules(folder: str) -> list[Path]:
    return sorted((PROJECT / folder).rglob("*.py"))


def imports(path: Path) -> Iterator[str]:
    """Every module that a file imports, anywhere in it."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: import by the full name, not relatively"
            assert node.module
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def test_only_dags_import_airflow() -> None:
    users = {
        path
        for folder in ("pipelines", "jobs")
        for path in modules(folder)
        for name in imports(path)
        if name.split(".")[0] == "airflow"
    }
    assert users == set()


def test_dags_import_nothing_of_ours_but_pipelines_and_each_other() -> None:
    found = {name for path in modules("dags") for name in imports(path) if name.split(".")[0] in ("jobs", "tests")}
    assert found == set()


def test_pipelines_import_the_standard_library_alone() -> None:
    allowed = sys.stdlib_module_names | {"pipelines"}
    found = {name for path in modules("pipelines") for name in imports(path) if name.split(".")[0] not in allowed}
    assert found == set()


def test_jobs_import_no_dag() -> None:
    assert {name for path in modules("jobs") for name in imports(path) if name.split(".")[0] == "dags"} == set()


@pytest.mark.parametrize("stage", STAGES)
def test_a_stage_imports_no_other_stage(stage: str) -> None:
    others = {f"jobs.{other}" for other in STAGES if other != stage}
    found = {name for path in modules(f"jobs/{stage}") for name in imports(path) if ".".join(name.split(".")[:2]) in others}
    assert found == set()


def test_shared_modules_import_no_stage() -> None:
    stages = {f"jobs.{stage}" for stage in STAGES}
    shared = [path for path in modules("jobs") if path.parent.name == "jobs"]
    found = {(path.name, name) for path in shared for name in imports(path) if ".".join(name.split(".")[:2]) in stages}
    assert found == set()


def test_help_imports_nothing_heavy() -> None:
    """Each call of `penstock` reads every command: what they import at the top is paid each time."""
    code = "import sys, jobs.cli; jobs.cli.discover(); print(*{name.split('.')[0] for name in sys.modules})"
    loaded = set(
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=PROJECT).stdout.split()
    )
    assert loaded & (HEAVY | {"pyarrow", "deltalake"}) == set()


def test_files_are_one_idea_each() -> None:
    long = {
        path.name: lines for folder in FOLDERS for path in modules(folder) if (lines := len(path.read_text().splitlines())) > 350
    }
    assert set(long) <= {"declare.py"}, "split these files, each is perhaps two ideas"
    forbidden = {"utils.py", "helpers.py", "common.py", "misc.py"}
    assert {path for folder in FOLDERS for path in modules(folder) if path.name in forbidden} == set()


def test_the_lock_has_hashes_and_no_address() -> None:
    lock = (PROJECT / "requirements.lock").read_text()
    pinned = re.findall(r"^[a-z0-9][^\s=]*==\S+", lock, flags=re.MULTILINE)
    assert len(pinned) > 100
    assert len(pinned) == len(re.findall(r"^[a-z0-9][^\n]*\\\n    --hash=sha256:", lock, flags=re.MULTILINE))
    assert "://" not in lock and "--index" not in lock and "--find-links" not in lock


def test_the_readme_tree_is_the_disk() -> None:
    readme = (PROJECT / "README.md").read_text()
    tree = re.search(r"```tree\n(.*?)```", readme, flags=re.DOTALL)
    assert tree, "README.md has no block fenced as ```tree"
    shown = {line.split()[0] for line in tree.group(1).splitlines() if line.strip()}
    missing = {path for path in shown if not (PROJECT / path).exists()}
    assert missing == set(), "the README's tree shows what is not there"
    tracked = subprocess.run(["git", "ls-files"], cwd=PROJECT, capture_output=True, text=True, check=True).stdout.split()
    folders = {f"{Path(path).parts[0]}/" if len(Path(path).parts) > 1 else path for path in tracked}
    stages = {f"jobs/{stage}/" for stage in STAGES}
    assert {path for path in folders | stages if not path.startswith(".")} - shown == set(), "the README's tree leaves these out"
