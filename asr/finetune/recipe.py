"""The recipe of a fine-tuning: the bundle's own, and how long and how fast it learns."""

import math
from pathlib import Path
from typing import Any

from asr.config import Config, apply_override, check_config, positive_number
from asr.errors import ConfigError
from asr.finetune.corpus import DEV, TRAIN, Corpus
from asr.training_config import DataConfig

# The steps for an hour of audio or less, and the learning rate times d_model: half of what the
# recipes give a fresh model of the same width.
_STEPS, _RATE = 600, 0.08
_FEWEST_EPOCHS, _MOST_EPOCHS = 4, 60
_AFTER_MUON = 32.0  # seconds of audio in a batch
_LONGEST = 20.0  # seconds, up to which longer recordings raise decoding.chunk_seconds
_GIVEN = {"data.train": "DATA", "data.dev": "DATA", "training.init": "BUNDLE"}
_KEPT = ("features", "model", "tokenizer")
_FREE = ("model.dropout", "model.ctc_weight")  # no tensor depends on their values above 0
WITHOUT_LM: dict[str, Any] = {"lm": None, "lm_weight": 0.0, "lm_bonus": 0.0}


def adapt(
    config: Config,
    corpus: Corpus,
    init: Path,
    replay: Path | None,
    freeze: list[str],
    overrides: list[str],
) -> Config:
    """Return the recipe by which the bundle `init` learns from a corpus, with `key.key=value` set.

    Features, tokens, network (the ranks of its LEDs too) and augmentation stay. Raises ConfigError
    where a value is wrong, or would change what must stay.
    """
    batch_seconds, steps, epochs = _amount(config, corpus, overrides)
    values = config.model_dump(mode="json")
    values["data"] |= {
        "train": str(corpus.train),
        "dev": str(corpus.dev),
        "allow": [],
        "batch_seconds": batch_seconds,
        "replay": _replay(replay) if replay else None,
    }
    values["tokenizer"]["vocab_size"] = None  # it grows
    # Training finds the threshold anew; a language model has other tokens. Chunks of recordings are
    # as long as before, however short the new ones are. They get longer if more than 1 % of the new
    # ones are longer: what is longer than nearly all of training is recognized badly.
    values["decoding"] |= {"confidence_threshold": None} | WITHOUT_LM
    if seconds := values["decoding"]["chunk_seconds"]:
        values["decoding"]["chunk_seconds"] = max(seconds, min(round(corpus.p99, 1), _LONGEST))
    if values["augment"] and values["augment"]["pauses"]:
        values["augment"]["pauses"]["from_epoch"] = 1  # the alignment is known already
    values["training"] |= {
        "epochs": epochs,
        "schedule": {
            "kind": "linear",
            "lr": round(_RATE / config.model.d_model, 6),
            "warmup_steps": max(1, epochs * steps // 10),
        },
        "optimizer": {"kind": "adam"},  # for which this rate was found
        "average": min(3, epochs),
        "accumulate": 1,
        "patience": None,
        "curriculum": None,
        "precision": "auto",
        "consistency": 0.0,  # this and intermediate heads are for a model that knows nothing
        "intermediate": [],
        "shared_sounds": False,
        "init": str(init),
        "freeze": freeze,
    }
    _override(values, overrides)
    adapted = check_config(values, Path("--set or --freeze"))
    if bool(adapted.model.ctc_weight) != bool(config.model.ctc_weight):
        head, fix = ("a", "above 0") if config.model.ctc_weight else ("no", "at 0")
        raise ConfigError(f"--set model.ctc_weight: the bundle has {head} CTC head: leave it {fix}")
    return adapted


def limits(config: Config, overrides: list[str]) -> DataConfig:
    """Return the recipe's `data`, with the limits of an utterance's length that `overrides` set.

    Raises ConfigError where the limits are wrong.
    """
    given, values = _given(overrides).get("data"), config.model_dump(mode="json")
    for name in ("min_seconds", "max_seconds"):
        if isinstance(given, dict) and name in given:
            values["data"][name] = given[name]
    return check_config(values, Path("--set")).data


def _given(overrides: list[str]) -> dict[str, Any]:
    given: dict[str, Any] = {}
    for override in overrides:
        apply_override(given, override)
    return given


def _amount(config: Config, corpus: Corpus, overrides: list[str]) -> tuple[float, int, int]:
    """Return the audio of a batch in seconds, the steps of an epoch, and the epochs."""
    given = _given(overrides)
    batch_seconds = positive_number(given, "data", "batch_seconds")
    batch_seconds = batch_seconds or _batch_seconds(config, corpus, _n_speeds(config, given))
    accumulate = math.ceil(positive_number(given, "training", "accumulate") or 1)
    audio = corpus.hours * 3600 * _n_speeds(config, given)
    steps = math.ceil(audio / (batch_seconds * accumulate))
    epochs = math.ceil(positive_number(given, "training", "epochs") or 0)
    if not epochs:
        epochs = math.ceil(_STEPS * max(1.0, corpus.hours**0.6) / steps)
        epochs = min(max(_FEWEST_EPOCHS, epochs), _MOST_EPOCHS)
    return batch_seconds, steps, epochs


def _override(values: dict[str, Any], overrides: list[str]) -> None:
    """Set values of a recipe. Raises ConfigError for values that the fine-tuning must choose."""
    for override in overrides:
        key = apply_override(values, override)
        if key in ("data", "training"):
            raise ConfigError(
                f"--set {key}: replaces all its values, those of this fine-tuning too: set one at "
                "a time, as in --set training.epochs=20"
            )
        if (section := key.partition(".")[0]) in _KEPT and key not in _FREE:
            raise ConfigError(
                f"--set {key}: the {section} of the bundle stay as they are: train a new model for "
                "others"
            )
        if given_as := _GIVEN.get(key):
            raise ConfigError(f"--set {key}: follows from {given_as} of `asr finetune`: give that")
    replay = values["data"]["replay"]
    if isinstance(replay, dict) and "train" not in replay:
        raise ConfigError(
            "--set data.replay: names no older corpus: give --replay OLD_CORPUS, and set one value "
            "at a time, as in --set data.replay.share=0.5"
        )


def _n_speeds(config: Config, given: dict[str, Any]) -> int:
    """Return at how many speeds each utterance is read; wrong values are reported later."""
    data = given.get("data")
    speeds = data.get("speed_factors") if isinstance(data, dict) else None
    return len(speeds) if isinstance(speeds, list) and speeds else len(config.data.speed_factors)


def _batch_seconds(config: Config, corpus: Corpus, n_speeds: int) -> float:
    """Return the seconds of a batch: few for a small corpus, so that there are enough steps."""
    share, most = corpus.hours * 3600 * n_speeds / 30, config.data.batch_seconds
    if config.training.optimizer.kind == "muon" and config.training.accumulate == 1:
        # Fine-tuning uses Adam, measured with batches of 32 s where Muon has steps of 64 s.
        most = max(min(most, _AFTER_MUON), most / 2)
    return float(round(max(8.0, 2 * corpus.longest, min(most, share))))


def _replay(path: Path) -> dict[str, str]:
    """Return the values for an older corpus: a folder of `asr prepare`, or a manifest."""
    names = {"train": path / TRAIN, "dev": path / DEV}
    found = {split: str(file) for split, file in names.items() if file.is_file()}
    return found if "train" in found else {"train": str(path)}
