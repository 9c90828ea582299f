"""What several tests need: a tiny corpus of tones and a recipe that learns it in seconds."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile as sf
import yaml

from data_prep.corpus_writer import Utterance, write_corpus

from serving import Service, library, running, service, tiny_bundle  # noqa: F401  # isort: skip  # fixtures

RATE = 8000
TONES = {"一": 400, "二": 700, "三": 1100, "四": 1700, "五": 2400}


def speak(text: str, seed: int = 0) -> np.ndarray:
    """A text as a row of tones with a little noise: 0.12 s a character, 8 kHz."""
    rng = np.random.default_rng(seed)
    t = np.arange(int(0.1 * RATE)) / RATE
    gap = np.zeros(int(0.02 * RATE))
    tones = [
        np.concatenate((np.sin(2 * np.pi * TONES[c] * t) * np.hanning(len(t)), gap)) for c in text
    ]
    wave = np.concatenate((gap, *tones, gap))
    return (0.5 * wave + rng.normal(0, 0.003, len(wave))).astype(np.float32)


def write_tones(root: Path, n_train: int = 120, n_dev: int = 8) -> Path:
    """A corpus of tones: manifests in `root`; returns it."""
    rng = np.random.default_rng(0)
    (root / "wav").mkdir(parents=True)
    splits: dict[str, list[Utterance]] = {"train": [], "dev": [], "test": []}
    for split, n in (("train", n_train), ("dev", n_dev), ("test", n_dev)):
        for i in range(n):
            text = "".join(rng.choice(list(TONES), size=rng.integers(1, 5)))
            path = root / "wav" / f"{split}{i}.wav"
            sf.write(path, speak(text, i), RATE, subtype="PCM_16")
            splits[split].append(Utterance(f"{split}{i}", path, text, "tone"))
    write_corpus(splits, root, corpus="tones", synthetic=True, jobs=1)
    return root


def tones_recipe(corpus: Path, **changes: Any) -> dict[str, Any]:
    """A tiny recipe over it, as the values of a YAML file."""
    values: dict[str, Any] = {
        "data": {
            "train": str(corpus / "train.jsonl.gz"),
            "dev": str(corpus / "dev.jsonl.gz"),
            "batch_seconds": 4,
        },
        "features": {"kind": "log_mel", "sample_rate": RATE, "n_mels": 20},
        "augment": {"freq_masks": 1, "freq_width": 2, "time_masks": 1, "time_ratio": 0.1},
        "model": {
            "d_model": 32,
            "d_inner": 64,
            "n_heads": 2,
            "dropout": 0.1,
            "norm": "pre",
            "projection": {"kind": "low_rank", "rank": 8},
            "frontend": {"kind": "vgg", "channels": [4, 8]},
            "encoder": {"n_layers": 1},
            "decoder": {"n_layers": 1},
            "ctc_weight": 0.5,
        },
        "search": {"beam_size": 3, "ctc_weight": 0.5},
        "training": {
            "epochs": 2,
            "schedule": {"kind": "noam", "warmup_steps": 50},
            "average": 2,
            "checkpoint_steps": 2,
        },
    }
    for key, value in changes.items():
        values[key] = {**values[key], **value} if isinstance(value, dict) else value
    return values


def write_recipe(path: Path, values: dict[str, Any]) -> Path:
    """The recipe as a file."""
    path.write_text(yaml.safe_dump(values), "utf-8")
    return path


@pytest.fixture(scope="session")
def tones(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tone corpus, once for all tests."""
    return write_tones(tmp_path_factory.mktemp("tones") / "data")


def learning_recipe(corpus: Path) -> dict[str, Any]:
    """The tiny recipe with enough epochs to get the tones right."""
    return tones_recipe(
        corpus,
        model={"dropout": 0.0, "d_model": 48},
        training={
            "epochs": 16,
            "schedule": {"kind": "linear", "lr": 4e-3, "warmup_steps": 40},
        },
    )


def say(n_tones: int, seed: int) -> tuple[np.ndarray, list[tuple[str, float, float]]]:
    """Tones with pauses of up to 0.6 s between some: the wave, and each tone's start and end."""
    rng = np.random.default_rng(seed)
    parts, spoken, at = [], [], 0.0
    for text in rng.choice(list(TONES), size=n_tones):
        pause = np.zeros(int(rng.choice([0, 0, rng.uniform(0, 0.6)]) * RATE))
        tone = speak(text, seed)
        parts += [pause, tone]
        begin = at + len(pause) / RATE + 0.02
        spoken.append((str(text), begin, begin + 0.1))
        at += (len(pause) + len(tone)) / RATE
    wave = np.concatenate(parts)
    return wave + 0.003 * rng.normal(size=len(wave)), spoken


@pytest.fixture(scope="session")
def hearing(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle that has learnt tones with pauses between them."""
    from asr.config import Config
    from asr.train.run import train

    root = tmp_path_factory.mktemp("paused")
    splits: dict[str, list[Utterance]] = {"train": [], "dev": [], "test": []}
    for split, n in (("train", 160), ("dev", 6), ("test", 6)):
        for i in range(n):
            wave, spoken = say(1 + i % 8, len(split) * 1000 + i)
            path = root / f"{split}{i}.wav"
            sf.write(path, wave, RATE)
            text = "".join(token for token, _, _ in spoken)
            splits[split].append(Utterance(f"{split}{i}", path, text, "tone"))
    write_corpus(splits, root / "data", corpus="paused tones", synthetic=True, jobs=1)
    recipe = learning_recipe(root / "data")
    recipe["training"]["epochs"] = 5
    recipe.setdefault("search", {})["piece_seconds"] = 20
    return train(Config.model_validate(recipe), root / "model")


@pytest.fixture(scope="session")
def hearing_service(hearing: Path) -> Iterator[Service]:
    """A service of that bundle, under the name of `tiny`."""
    with running(hearing) as found:
        yield found


def run_cli(*args: str | Path, **kwargs: Any) -> subprocess.CompletedProcess[str]:
    """The command line in a process of its own."""
    command = [sys.executable, "-c", "from asr.cli import main; main()", *map(str, args)]
    return subprocess.run(command, capture_output=True, text=True, check=False, **kwargs)
