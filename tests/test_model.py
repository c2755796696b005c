"""The logged model: it loads where this project is not, scores what the network scored, and takes whatever comes."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from small_training import full, prepare, rides

ELSEWHERE = """
import sys

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("jobs", "pipelines"):
            raise ImportError(f"{name} is not here")

sys.meta_path.insert(0, Absent())
import mlflow, numpy, pandas
model = mlflow.pyfunc.load_model(sys.argv[1])
rows = pandas.read_parquet(sys.argv[2])
found = {str(size): model.predict(rows.head(size))["score"].to_numpy() for size in (0, 1, 2, 3, len(rows))}
numpy.savez(sys.argv[3], **found)
assert not any(name.split(".")[0] in ("jobs", "pipelines") for name in sys.modules)
"""
STRANGE = {
    "city": ["Ghent", "Atlantis", None, ""],
    "driver": [None, "driver 1", "nobody", "driver 2"],
    "length": [3000.0, float("nan"), float("inf"), -1e300],
    "price": [None, 1.0, float("-inf"), 2.0],
}
"""Values that the training days don't have, and none at all."""


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A prepared folder with an exported network of random weights: (pipeline, prepared, folder, network)."""
    import torch

    from jobs.train.export import export
    from jobs.train.network import Network

    folder = tmp_path_factory.mktemp("shared")
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("PENSTOCK_LAKE", str(tmp_path_factory.mktemp("lake")))
        pipeline = rides("logged", full())
        prepared = prepare(pipeline, folder)
    torch.manual_seed(1)
    network = Network(prepared.plan).eval()
    for parameter in network.parameters():
        torch.nn.init.normal_(parameter)
    export(network, prepared.plan, folder)
    return pipeline, prepared, folder, network


def scored(network: Any, folder: Path, rows: pa.Table) -> npt.NDArray[np.float64]:
    """What the network itself says."""
    import torch

    from jobs.model import Encoder

    numbers, ids = Encoder.read(folder / "model").encode(rows)
    with torch.inference_mode():
        logits = network(torch.from_numpy(numbers), torch.from_numpy(ids))
    return torch.sigmoid(logits.double()).numpy()  # type: ignore[no-any-return]


@pytest.mark.mlflow
def test_it_loads_without_the_project_and_scores_the_same(shared: Any, tmp_path: Path) -> None:
    import mlflow

    from jobs.train.track import packed

    pipeline, prepared, folder, network = shared
    mlflow.pyfunc.save_model(path=tmp_path / "model", **packed(pipeline, prepared, folder))
    assert not [path for path in (tmp_path / "model").rglob("*") if path.suffix in (".pkl", ".pickle", ".cloudpickle")]

    rows = pa.concat_tables([pa.table(STRANGE), prepared.example.cast(pa.table(STRANGE).schema)])
    pq.write_table(rows, tmp_path / "rows.parquet")
    # -I: no PYTHONPATH, and not the folder that it runs in. The finder hides the project where it is installed.
    command = [sys.executable, "-I", "-c", ELSEWHERE, "model", "rows.parquet", "scores.npz"]
    subprocess.run(command, cwd=tmp_path, check=True, stdin=subprocess.DEVNULL)

    found = np.load(tmp_path / "scores.npz")
    expected = scored(network, folder, rows)
    assert len(expected) == 9 and expected.std() > 0.01
    for size in (0, 1, 2, 3, 9):
        assert found[str(size)].dtype == np.float64
        np.testing.assert_allclose(found[str(size)], expected[:size], rtol=0, atol=1e-6)


def test_strange_values_are_unknown_or_missing(shared: Any) -> None:
    from jobs.model import Encoder

    _, prepared, folder, _ = shared
    encoder = Encoder.read(folder / "model")
    numbers, ids = encoder.encode(pa.table(STRANGE))
    vocabularies = {name: values.to_pylist() for name, values in encoder.vocabularies.items()}
    # Eight rows a day: the cities come three, three and two times; each driver comes on all fourteen days.
    assert vocabularies == {"city": ["Bruges", "Ghent"], "driver": [f"driver {number}" for number in range(8)]}
    assert ids.tolist() == [[2, 0], [0, 2], [0, 0], [0, 3]]
    assert prepared.plan.categories == (3, 9) and prepared.plan.numbers == 3
    # Only the price is missing in the training days, so only it has an indicator.
    assert numbers[:, 2].tolist() == [1, 0, 1, 0]
    assert numbers[1, 0] == numbers[2, 0] == numbers[0, 1] == numbers[2, 1] == 0
    assert numbers[3, 0] == -encoder.limit[0] and np.isfinite(numbers).all()


def test_scales_and_vocabularies_come_from_the_training_days_alone(shared: Any) -> None:
    _, _, folder, _ = shared
    scales = pq.read_table(folder / "model" / "numbers.parquet").to_pydict()
    # The price is the row's number within its day where that is no multiple of four: 1, 2, 3, 5, 6, 7 in training,
    # up to 19 in the holdout.
    assert scales["name"] == ["length", "price"]
    assert scales["mean"][1] == pytest.approx(4) and scales["scale"][1] == pytest.approx(np.std([1, 2, 3, 5, 6, 7]))


def test_a_step_reads_only_the_shards_of_its_rank(shared: Any) -> None:
    from jobs.train.order import Order
    from jobs.train.stream import Part, batches

    _, prepared, folder, _ = shared
    part = Part(folder / "training.parquet")
    order = Order(rows=part.rows, shards=prepared.plan.shards, batch=prepared.plan.batch_size, seed=5)
    assert sum(part.rows) == prepared.rows["training"] == 112

    def steps(rank: int, ranks: int, first: int = 0) -> list[npt.NDArray[np.float32]]:
        return [np.sort(each.numbers[:, 0]) for each in batches(part, order, epoch=1, rank=rank, ranks=ranks, first=first)]

    whole = steps(0, 1)
    every = np.sort(part.groups(range(len(part.rows))).numbers[:, 0])
    np.testing.assert_array_equal(np.sort(np.concatenate(whole)), every)
    for step, (one, left, right) in enumerate(zip(whole, steps(0, 2), steps(1, 2), strict=True)):
        np.testing.assert_array_equal(one, np.sort(np.concatenate([left, right])))
        assert len(one) == order.size(step)
    np.testing.assert_array_equal(steps(0, 1, first=2)[0], whole[2])
