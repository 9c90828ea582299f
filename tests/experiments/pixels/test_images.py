"""MNIST's idx files, and scikit-learn's digits."""

import gzip
import struct
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from asr.errors import DataError
from experiments.pixels import images
from experiments.runner import Examples


def stack(examples: Examples) -> tuple[Tensor, list[int]]:
    return torch.stack([pixels for pixels, _ in examples]), [label for _, label in examples]


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
    train, test = images.load_mnist(mnist)
    assert len(train) == 5 and len(test) == 3
    pixels_BS, labels = stack(train)
    path = mnist / "train-images-idx3-ubyte"
    raw = np.frombuffer(path.read_bytes()[16:], np.uint8).reshape(5, 784)
    assert pixels_BS.shape == (5, 784) and labels == [0, 1, 2, 3, 4]
    assert pixels_BS.numpy() == pytest.approx((raw - raw.mean()) / raw.std(), abs=1e-3)
    tests = np.frombuffer((mnist / "t10k-images-idx3-ubyte").read_bytes()[16:], np.uint8)
    expected = (tests.reshape(3, 784) - raw.mean()) / raw.std()  # by what is trained on
    assert stack(test)[0].numpy() == pytest.approx(expected, abs=1e-3)
    (mnist / f"{path.name}.gz").write_bytes(gzip.compress(path.read_bytes()))
    path.unlink()
    assert stack(images.load_mnist(mnist)[0])[0].equal(pixels_BS)


@pytest.mark.parametrize(
    ("name", "change", "says"),
    [
        ("train-images-idx3-ubyte", lambda b: None, "is missing, with .gz too"),
        ("train-images-idx3-ubyte", lambda b: b[:-7], "its head says 5 × 28 × 28"),
        ("t10k-images-idx3-ubyte", lambda b: b[:6], "no idx file of bytes in 3 axes"),
        ("t10k-labels-idx1-ubyte", lambda b: b"\x89PNG" + b, "no idx file of bytes in 1 axes"),
        ("t10k-labels-idx1-ubyte", lambda b: b[:-1] + b"\x0a", "labels 0 to 9"),
        ("t10k-labels-idx1-ubyte", lambda b: b[:7] + b"\x02" + b[8:-1], "labels 0 to 9"),
        ("train-labels-idx1-ubyte", lambda b: b[:4] + bytes(4), "its head says 0"),
    ],
)  # fmt: skip
def test_a_wrong_idx_file_is_named(mnist: Path, name: str, change, says: str) -> None:
    path = mnist / name
    data = change(path.read_bytes())
    path.unlink() if data is None else path.write_bytes(data)
    with pytest.raises(DataError) as caught:
        images.load_mnist(mnist)
    assert name in str(caught.value) and says in str(caught.value)


def test_a_gzip_that_is_none_or_damaged_is_named(mnist: Path) -> None:
    path = mnist / "train-images-idx3-ubyte"
    whole = gzip.compress(path.read_bytes())
    packed = path.rename(mnist / f"{path.name}.gz")
    for data in (packed.read_bytes(), whole[:10] + b"\xff" * 20 + whole[30:]):
        packed.write_bytes(data)
        with pytest.raises(DataError, match=r"idx3-ubyte.gz: cannot be unpacked"):
            images.load_mnist(mnist)


def test_images_of_another_size_are_refused(mnist: Path) -> None:
    write_idx(mnist / "train-images-idx3-ubyte", np.zeros((5, 8, 8)))
    with pytest.raises(DataError, match="give images of 28 × 28"):
        images.load_mnist(mnist)


def test_the_digits_of_scikit_learn_are_standardized() -> None:
    train, test = images.load_digits()
    assert (len(train), len(test)) == (1347, 450)
    pixels_BS, labels = stack(train)
    assert pixels_BS.unique().numel() == 17 and set(labels) == set(range(10))
    assert abs(pixels_BS.mean()) < 1e-4 and abs(pixels_BS.std() - 1) < 1e-4
