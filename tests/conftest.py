"""What several tests need: a tiny corpus of tones and a recipe that learns it in seconds."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import soundfile as sf
import torch

import asr
from asr.bundle import Bundle
from asr.config import Config
from asr.tokenizer import Tokenizer
from asr.transcription.recognizer import Recognizer
from data_prep.corpus_writer import Utterance, write_corpus
from tests.helpers import (
    MAX_BYTES,
    MAX_SECONDS,
    RATE,
    Service,
    learning_recipe,
    running,
    say,
    write_tones,
)


@pytest.fixture(scope="session")
def tones(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tone corpus, once for all tests."""
    return write_tones(tmp_path_factory.mktemp("tones") / "data")


@pytest.fixture(scope="session")
def trained_bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle that has learned tones with pauses between them."""
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
    recipe.setdefault("decoding", {})["chunk_seconds"] = 20
    return train(Config.model_validate(recipe), root / "model")


@pytest.fixture(scope="session")
def trained_service(trained_bundle: Path) -> Iterator[Service]:
    """A service of that bundle, under the name of `tiny`."""
    with running(trained_bundle) as found:
        yield found


@pytest.fixture(scope="session")
def tiny_bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle with random weights, of a model as small as can be."""
    config = Config.model_validate(
        {
            "data": {"train": "train.jsonl.gz", "dev": "dev.jsonl.gz"},
            "features": {"kind": "log_mel", "n_mels": 40},
            "model": {
                "d_model": 32, "d_inner": 64, "n_heads": 2, "ctc_weight": 0.3,
                "projection": {"kind": "low_rank", "rank": 8},
                "frontend": {"kind": "vgg", "channels": [4, 4]},
            },
            # A random model guesses.
            "decoding": {
                "beam_size": 2, "ctc_weight": 0.5, "confidence_threshold": 0, "chunk_seconds": 20,
            },
        }
    )  # fmt: skip
    tokenizer = Tokenizer.train(["今天天气很好我们去公园", "打开窗户三点十分"], config.tokenizer)
    folder = tmp_path_factory.mktemp("exp") / "tiny"
    torch.manual_seed(4)
    Bundle.create(config, tokenizer).save(folder, "a card")
    return folder


@pytest.fixture(scope="session")
def library(tiny_bundle: Path) -> Recognizer:
    """The same model without a service."""
    return asr.load(tiny_bundle, "cpu")


@pytest.fixture(scope="session")
def service(tiny_bundle: Path) -> Iterator[Service]:
    """A service for all tests that only talk to it."""
    with running(tiny_bundle, max_bytes=MAX_BYTES, max_seconds=MAX_SECONDS) as service:
        yield service
