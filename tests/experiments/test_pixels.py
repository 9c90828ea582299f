"""recipes/pixels: idx files, and the table."""

import gzip
import importlib.util
import json
import struct
import sys
from pathlib import Path

import numpy as np
import pytest
from torch.utils.data import TensorDataset

from asr.errors import ConfigError, DataError
from experiments.pixels import images

RECIPE = Path(__file__).parents[2] / "experiments" / "pixels"


def write_idx(path: Path, values: np.ndarray) -> None:
    head = struct.pack(">BBBB", 0, 0, 8, values.ndim) + struct.pack(
        f">{values.ndim}I", *values.shape
    )
    path.write_bytes(head + values.astype(np.uint8).tobytes())


@pytest.fixture
def mnist(tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)
    for name, n in (("train", 5), ("t10k", 3)):
        write_idx(tmp_path / f"{name}-images-idx3-ubyte", rng.integers(0, 256, (n, 28, 28)))
        write_idx(tmp_path / f"{name}-labels-idx1-ubyte", np.arange(n))
    return tmp_path


def test_mnist_is_read_gzipped_or_not(mnist: Path) -> None:
    train, test = images.mnist(mnist)
    assert len(train) == 5 and len(test) == 3
    pixels_BS, labels_B = train.tensors
    path = mnist / "train-images-idx3-ubyte"
    raw = np.frombuffer(path.read_bytes()[16:], np.uint8).reshape(5, 784)
    assert pixels_BS.shape == (5, 784) and labels_B.tolist() == [0, 1, 2, 3, 4]
    assert pixels_BS.numpy() == pytest.approx((raw - raw.mean()) / raw.std(), abs=1e-3)
    tests = np.frombuffer((mnist / "t10k-images-idx3-ubyte").read_bytes()[16:], np.uint8)
    expected = (tests.reshape(3, 784) - raw.mean()) / raw.std()  # by what is trained on
    assert test.tensors[0].numpy() == pytest.approx(expected, abs=1e-3)
    (mnist / f"{path.name}.gz").write_bytes(gzip.compress(path.read_bytes()))
    path.unlink()
    assert images.mnist(mnist)[0].tensors[0].equal(pixels_BS)


@pytest.mark.parametrize(
    ("name", "change", "says"),
    [
        ("train-images-idx3-ubyte", lambda b: None, "is not here, nor with .gz"),
        ("train-images-idx3-ubyte", lambda b: b[:-7], "its head says 5 × 28 × 28"),
        ("t10k-images-idx3-ubyte", lambda b: b[:6], "not an idx file of bytes in 3 axes"),
        ("t10k-labels-idx1-ubyte", lambda b: b"\x89PNG" + b, "not an idx file of bytes in 1 axes"),
        ("t10k-labels-idx1-ubyte", lambda b: b[:-1] + b"\x0a", "has a label 10"),
        ("t10k-labels-idx1-ubyte", lambda b: b[:7] + b"\x02" + b[8:-1], "has 2 labels"),
        ("train-labels-idx1-ubyte", lambda b: b[:4] + bytes(4), "its head says 0"),
    ],
)  # fmt: skip
def test_a_wrong_idx_file_is_named(mnist: Path, name: str, change, says: str) -> None:
    path = mnist / name
    data = change(path.read_bytes())
    path.unlink() if data is None else path.write_bytes(data)
    with pytest.raises(DataError) as caught:
        images.mnist(mnist)
    assert name in str(caught.value) and says in str(caught.value)


def test_a_gzip_that_is_none_or_damaged_is_named(mnist: Path) -> None:
    path = mnist / "train-images-idx3-ubyte"
    whole = gzip.compress(path.read_bytes())
    packed = path.rename(mnist / f"{path.name}.gz")
    for data in (packed.read_bytes(), whole[:10] + b"\xff" * 20 + whole[30:]):
        packed.write_bytes(data)
        with pytest.raises(DataError, match=r"idx3-ubyte.gz: cannot be unpacked"):
            images.mnist(mnist)


def test_pictures_of_another_size_are_refused(mnist: Path) -> None:
    write_idx(mnist / "train-images-idx3-ubyte", np.zeros((5, 8, 8)))
    with pytest.raises(DataError, match=r"\(8, 8\) pixels, MNIST's of 28 × 28"):
        images.mnist(mnist)


def test_the_recipe_prints_the_table_and_goes_on_where_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    spec = importlib.util.spec_from_file_location("pixels_run", RECIPE / "run.py")
    assert spec and spec.loader
    recipe = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(recipe)
    train, test = images.embedded()
    assert (len(train), len(test)) == (1347, 450) and train.tensors[0].unique().numel() == 17
    few = (TensorDataset(*train[:64]), TensorDataset(*test[:50]))
    monkeypatch.setattr(images, "embedded", lambda: few)

    def run(*options: str) -> list[str]:
        command = ["run.py", "--out", str(tmp_path), "--epochs", "2", *options]
        monkeypatch.setattr(sys, "argv", command)
        recipe.main()
        return capsys.readouterr().out.splitlines()

    lines = run("--seeds", "1")
    assert [line.split("|")[1].strip() for line in lines[2:]] == ["transformer", "lrt", "linformer"]
    parameters = [int(line.split("|")[2].replace(",", "")) for line in lines[2:]]
    # 4 layers: 6 factorised maps for LRT; E and F of 16 × 65 for Linformer.
    dense, thin = 4 * 64 * 64 + 2 * 64 * 256, 4 * 16 * 128 + 2 * 16 * 320
    assert parameters[0] - parameters[1] == 4 * (dense - thin)
    assert parameters[2] - parameters[0] == 4 * 2 * 16 * 65
    path = tmp_path / "results.json"
    found = json.loads(path.read_text())
    assert all(0 <= row[key] <= 100 for row in found["rows"] for key in ("train", "test"))
    found["rows"][0]["test"] = 12.5
    del found["rows"][2]
    path.write_text(json.dumps(found))
    again = run("--seeds", "1")
    assert "| 12.50 |" in again[2] and len(json.loads(path.read_text())["rows"]) == 3
    with pytest.raises(ConfigError, match="of other settings"):
        run("--epochs", "3")
