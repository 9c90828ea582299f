"""Pictures of digits: scikit-learn's own, or MNIST where its four files are."""

import gzip
import zlib
from pathlib import Path

import numpy as np
import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch.utils.data import TensorDataset

from asr.errors import DataError

Splits = tuple[TensorDataset, TensorDataset]


def embedded() -> Splits:
    """scikit-learn's 1,797 pictures of 8 × 8 pixels: 1,347 to train, 450 to test."""
    digits = load_digits()
    train_X, test_X, train_y, test_y = train_test_split(
        digits.data, digits.target, test_size=450, stratify=digits.target, random_state=0
    )
    return _datasets((train_X, train_y), (test_X, test_y))


def mnist(folder: Path) -> Splits:
    """MNIST's 28 × 28 pixels, from train-images-idx3-ubyte and its three fellows, .gz or not."""
    splits = []
    for name in ("train", "t10k"):
        path, pixels = _read_idx(folder, f"{name}-images-idx3-ubyte", 3)
        labels_path, labels = _read_idx(folder, f"{name}-labels-idx1-ubyte", 1)
        if len(pixels) != len(labels):
            raise DataError(
                f"{labels_path}: has {len(labels)} labels, {path.name} {len(pixels)} pictures: "
                "the files are of two sets"
            )
        if pixels[0].shape != (28, 28):
            raise DataError(f"{path}: pictures are of {pixels[0].shape} pixels, MNIST's of 28 × 28")
        if labels.max() > 9:
            raise DataError(f"{labels_path}: has a label {labels.max()}, digits go from 0 to 9")
        splits.append((pixels.reshape(len(pixels), -1), labels))
    return _datasets(*splits)


def _datasets(*splits: tuple[np.ndarray, np.ndarray]) -> Splits:
    """Pixels as numbers whose mean is 0 and deviation 1 over the pictures to train on."""
    train, test = (
        TensorDataset(torch.tensor(pixels, dtype=torch.float32), torch.tensor(labels).long())
        for pixels, labels in splits
    )
    std, mean = torch.std_mean(train.tensors[0])
    for split in (train, test):
        split.tensors[0].sub_(mean).div_(std)
    return train, test


def _read_idx(folder: Path, name: str, n_axes: int) -> tuple[Path, np.ndarray]:
    """An idx file: two zeros, 8 for bytes, the number of axes, their sizes, then the bytes."""
    path = next((p for p in (folder / name, folder / f"{name}.gz") if p.is_file()), None)
    if path is None:
        raise DataError(f"{folder / name}: is not here, nor with .gz: give the folder of MNIST")
    try:
        data = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{path}: cannot be unpacked ({error}): copy it again") from error
    head = 4 + 4 * n_axes
    if data[:4] != bytes((0, 0, 8, n_axes)) or len(data) < head:
        raise DataError(f"{path}: not an idx file of bytes in {n_axes} axes")
    shape = np.frombuffer(data[4:head], ">u4").astype(np.int64)
    if not shape.all() or len(data) - head != shape.prod():
        sizes = " × ".join(map(str, shape))
        raise DataError(f"{path}: {len(data) - head} bytes, its head says {sizes}: copy it again")
    return path, np.frombuffer(data[head:], np.uint8).reshape(shape)
