"""Images of digits as rows of pixels: scikit-learn's own, or MNIST (LeCun 1998) from its files."""

import gzip
import zlib
from pathlib import Path

import numpy as np
import sklearn.datasets
import torch
from sklearn.model_selection import train_test_split

from asr.errors import DataError
from experiments.runner import Examples

Splits = tuple[Examples, Examples]


def load_digits() -> Splits:
    """Return scikit-learn's 1,797 images of 8 × 8 pixels: 1,347 to train, 450 to test."""
    digits = sklearn.datasets.load_digits()
    train_X, test_X, train_y, test_y = train_test_split(
        digits.data, digits.target, test_size=450, stratify=digits.target, random_state=0
    )
    return _standardize((train_X, train_y), (test_X, test_y))


def load_mnist(folder: Path) -> Splits:
    """Return MNIST's images of 28 × 28 pixels; each of its four idx files may be gzipped.

    Raises DataError that names the wrong file.
    """
    splits = []
    for name in ("train", "t10k"):
        path, images = _read_idx(folder, f"{name}-images-idx3-ubyte", 3)
        labels_path, labels = _read_idx(folder, f"{name}-labels-idx1-ubyte", 1)
        if images.shape[1:] != (28, 28) or len(images) != len(labels) or labels.max() > 9:
            raise DataError(f"{path} and {labels_path.name}: give images of 28 × 28, labels 0 to 9")
        splits.append((images.reshape(len(images), -1), labels))
    return _standardize(*splits)


def _standardize(*splits: tuple[np.ndarray, np.ndarray]) -> Splits:
    """Return examples whose pixels have mean 0 and deviation 1 over the training images."""
    (train, train_y), (test, test_y) = ((torch.tensor(x).float(), y.tolist()) for x, y in splits)
    std, mean = torch.std_mean(train)
    examples = list(zip((train - mean) / std, train_y, strict=True))
    return examples, list(zip((test - mean) / std, test_y, strict=True))


def _read_idx(folder: Path, name: str, n_axes: int) -> tuple[Path, np.ndarray]:
    """Read two zeros, 8 for bytes, the number of axes, their sizes (big-endian) and the bytes."""
    path = next((p for p in (folder / name, folder / f"{name}.gz") if p.is_file()), None)
    if path is None:
        raise DataError(f"{folder / name}: is missing, with .gz too: give the folder of MNIST")
    try:
        data = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{path}: cannot be unpacked ({error}): copy it again") from error
    start = 4 + 4 * n_axes
    if data[:4] != bytes((0, 0, 8, n_axes)) or len(data) < start:
        raise DataError(f"{path}: is no idx file of bytes in {n_axes} axes")
    shape = np.frombuffer(data[4:start], ">u4").astype(np.int64)
    if not shape.all() or len(data) - start != shape.prod():
        sizes = " × ".join(map(str, shape))
        raise DataError(f"{path}: {len(data) - start} bytes, its head says {sizes}: copy it again")
    return path, np.frombuffer(data[start:], np.uint8).reshape(shape)
