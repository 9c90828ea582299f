"""A training run, top to bottom: cuts, tokens, weights, epochs, a bundle.

Beside the bundle is `training/`: `last.ckpt`, from which an interrupted run resumes to the same
weights; the best epochs; TensorBoard's curves. Checkpoints are read as tensors and plain values
(`weights_only`), so that no checkpoint can run code.
"""

import copy
import logging
from collections.abc import Callable
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, TypeVar

import lightning as L
import torch

from asr.bundle import CONFIG, TOKENIZER, WEIGHTS, Bundle, is_within, load_weights
from asr.config import Config, dump_config, load_config
from asr.data.manifest import text_of
from asr.decoding.decode import SpeechDecoder
from asr.errors import ConfigError
from asr.evaluation.cer import have_words
from asr.model.size import count_parameters
from asr.reporting.cost import write_cost
from asr.reporting.model_card import model_card
from asr.runtime.devices import choose_device
from asr.runtime.files import write_atomically, write_text
from asr.runtime.memory import keep_buffers, keep_kernels
from asr.tokenizer import Tokenizer
from asr.train.callbacks import MemoryProbe
from asr.train.checkpoints import Checkpoints, average_into, check_room, has_run, states
from asr.train.datamodule import SpeechDataModule
from asr.train.distributed import (
    all_reduce_sum,
    from_rank_zero,
    init_distributed,
    rank,
    rank_zero_first,
    sole_run,
    world_size,
)
from asr.train.energy import CostMeter
from asr.train.mirror import run_folder
from asr.train.module import SpeechModule
from asr.train.optimizer import check_rates
from asr.train.schedule import warn_of_warmup
from asr.train.sounds import check_sounds
from asr.train.tokens import tokens_of_run
from asr.train.trainer import fit

log = logging.getLogger(__name__)

Place = TypeVar("Place", Path, str)

_FINISHED, _UTTERANCES = "finished", "utterances.sha256"
# Sections that must not change when a run resumes; of `data`, the keys of `_FREE` may.
_FIXED = ("seed", "data", "features", "tokenizer", "model")
_FREE = {"batch_seconds": 1.0, "num_workers": 0}


def train(config: Config, place: Place, resume: bool = False, device: str = "auto") -> Place:
    """Train a recipe into the bundle at `place`, and return `place`.

    `place` is a folder's path or, as a string, its URL. torchrun's processes share the run. Raises
    ConfigError where `place` holds another run, where the recipe uses a language model outside of
    it, or where values do not fit together (`check_rates`, `check_sounds`); DataError where the
    cuts are unusable.
    """
    decoding = config.decoding
    if decoding.lm_weight and decoding.lm and not is_within(Path(place), decoding.lm):
        raise ConfigError(
            f"decoding.lm: {decoding.lm} is not in {place}, and a bundle opens no file outside its "
            "folder: leave decoding.lm and lm_weight out, and set them after the training by "
            "`asr tune --write` or by --lm"
        )
    check_rates(config)
    check_sounds(config)
    chosen = choose_device(device)
    with init_distributed(chosen) as chosen, run_folder(place) as (out, mirror):
        _train(config, out, resume, chosen, mirror)
    return place


def _train(
    config: Config, out: Path, resume: bool, device: torch.device, mirror: Callable[[bool], None]
) -> None:
    """Train in the folder `out`; `mirror` is the function that `mirror.run_folder` yields."""
    with sole_run(state := out / "training"):
        if rank():
            logging.getLogger("asr").setLevel(logging.WARNING)
        _check_same_folder(state)
        is_finished = from_rank_zero(lambda: b"yes" if _is_finished(config, out, resume) else b"")
        rank_zero_first(lambda: None if rank() else mirror(True))  # a kill may have left it undone
        if is_finished:
            log.info("%s: this run is finished, nothing is left to do", out)
            return
        keep_buffers()
        keep_kernels()
        L.seed_everything(config.seed, verbose=False)
        datamodule, bundle = _prepare(config, state)
        dev_texts = (config.tokenizer.normalize(text_of(cut)) for cut in datamodule.dev_cuts)
        replayed = datamodule.replay.utterances if datamodule.replay else ()
        texts = [text_of(cut) for cut in chain(datamodule.utterances, replayed)]
        warn_of_warmup(config.training, datamodule.total_steps)
        module = SpeechModule(bundle, datamodule.total_steps, texts, have_words(dev_texts))
        writer = _BundleWriter(bundle, datamodule, module, CostMeter(bundle), out, device)
        checkpoints = Checkpoints(state, module, datamodule, writer.write, lambda: mirror(False))
        fit(module, checkpoints, device, writer.cost, MemoryProbe(datamodule))
        if not rank():
            writer.write(checkpoints, is_finished=True)
            (state / _FINISHED).touch()
            mirror(True)


@dataclass
class _BundleWriter:
    """Writes the bundle of a run's best epochs so far, with a model card of the run."""

    bundle: Bundle
    datamodule: SpeechDataModule
    module: SpeechModule
    cost: CostMeter
    out: Path
    device: torch.device

    def write(self, checkpoints: Checkpoints, is_finished: bool = False) -> None:
        """Write the bundle; a card of an unfinished run says so."""
        config, model = self.bundle.config, copy.deepcopy(self.bundle.model)
        average_into(model, checkpoints.best)
        found = {
            "chunk_seconds": min(max(1.0, round(self.datamodule.duration_p99, 1)), 30.0),
            # Epochs that an older version has trained have no threshold.
            "confidence_threshold": checkpoints.ranked[0].get("confidence_threshold", 0.0),
        }
        given = config.decoding.model_dump(exclude_none=True)
        decoding = config.decoding.model_copy(update={**found, **given})
        config = config.model_copy(update={"decoding": decoding})
        facts = self._facts(checkpoints)
        if not is_finished:
            epoch = f"epoch {len(checkpoints.history)} of {config.training.epochs}"
            facts = {"state": f"unfinished: {epoch}", **facts}
        best = Bundle(config, self.bundle.tokenizer, self.bundle.features, model)
        best.save(self.out, model_card(config, count_parameters(model), facts))
        write_cost(self.out, self.cost.total)

    def _facts(self, checkpoints: Checkpoints) -> dict[str, Any]:
        counters, best = self.module.counters, checkpoints.ranked[0]
        names = {"CER": "val_cer_percent", "WER": "val_wer_percent"}
        rates = {
            f"dev {rate} of the best epoch, greedy": f"{best[name]:.2f}%"
            for rate, name in names.items()
            if name in best
        }
        return {
            "training cuts": f"{self.datamodule} from {self.bundle.config.data.train_names}",
            "epochs": len(checkpoints.history),
            "steps": self.module.global_step,
            "steps skipped as not finite": counters.skipped,
            "trained on": f"{world_size()} x {self.device.type}",
            **self.cost.total.facts(),
            **rates,
            "recordings skipped as unreadable": counters.unreadable,
            "utterances with more text than CTC can place": counters.too_short,
        }


def _check_same_folder(state: Path) -> None:
    """Raise ConfigError where rank 0 lacks the state that another machine has of the run."""
    n_found = int(all_reduce_sum(torch.tensor(int(bool(states(state))))))
    if not rank() and n_found and not states(state):
        raise ConfigError(
            f"{state.parent}: another machine has this run there, and this one, which is the first "
            "now, has not: give a folder that all of them see"
        )


def is_begun(out: Path) -> bool:
    """Tell whether a folder without a state belongs to a run all the same.

    A kill between a run's first bundle and its first state leaves the bundle and the recipe.
    """
    state = out / "training"
    return (state / CONFIG).is_file() and not (state / _FINISHED).is_file()


def _is_finished(config: Config, out: Path, resume: bool) -> bool:
    """Return whether this run was finished before. Raises ConfigError for a different one."""
    state = out / "training"
    if not has_run(out, resume):
        if (out / WEIGHTS).is_file() and not is_begun(out):
            raise ConfigError(f"{out}: holds a bundle already: give another folder, or remove it")
        return False
    before = load_config(state / CONFIG)
    old, new = (
        c.model_copy(update={"data": c.data.model_copy(update=_FREE)}) for c in (before, config)
    )
    changed = [part for part in _FIXED if getattr(old, part) != getattr(new, part)]
    for part in ("optimizer", "curriculum", "freeze", "intermediate", "shared_sounds"):
        if getattr(before.training, part) != getattr(config.training, part):
            changed.append(f"training.{part}")
    if config.training.epochs < before.training.epochs:
        changed.append("training.epochs (fewer)")
    if changed:
        raise ConfigError(
            f"{out}: was begun with another {', '.join(changed)} (see {state / CONFIG}): give "
            "another folder, or the recipe as it was"
        )
    if before.decoding.chunk_seconds is None:  # a fine-tuning by an older version
        chunk = {"chunk_seconds": config.decoding.chunk_seconds}
        decoding = before.decoding.model_copy(update=chunk)
        before = before.model_copy(update={"decoding": decoding})
    data = before.data.model_copy(update={"num_workers": config.data.num_workers})
    before = before.model_copy(update={"data": data})
    return before == config and (state / _FINISHED).is_file() and (out / WEIGHTS).is_file()


def _prepare(config: Config, state: Path) -> tuple[SpeechDataModule, Bundle]:
    """Return the data and a bundle to train, with tokens and statistics of its training cuts alone.

    Raises AsrError where the disk has no room for what the run will write, ConfigError where the
    model cannot be decoded as the recipe says.
    """
    datamodule = rank_zero_first(lambda: SpeechDataModule(config))
    rank_zero_first(lambda: _check_utterances(state, datamodule))
    tokens = from_rank_zero(lambda: tokens_of_run(config, state, datamodule).model)
    tokenizer = Tokenizer(tokens, config.tokenizer.normalize)
    bundle = rank_zero_first(lambda: _fresh_bundle(config, tokenizer, datamodule))
    SpeechDecoder(bundle.model, tokenizer).check(config.decoding)
    datamodule.read_with(bundle)
    rank_zero_first(lambda: None if rank() else _write_run_files(config, datamodule, bundle, state))
    expected, n_tokens = config.tokenizer.vocab_size, tokenizer.vocab_size
    if config.tokenizer.kind == "char" and expected not in (None, n_tokens):
        log.warning(
            "the recipe expects %d tokens; the %d of the corpus are used", expected, n_tokens
        )
    size = count_parameters(bundle.model) / 1e6
    log.info("%s; %d tokens; %.2f M parameters", datamodule, n_tokens, size)
    return datamodule, bundle


def _fresh_bundle(config: Config, tokenizer: Tokenizer, datamodule: SpeechDataModule) -> Bundle:
    """Return new weights, or those of `training.init`. Raises AsrError if it is another model."""
    bundle = Bundle.create(config, tokenizer)
    if init := config.training.init:
        load_weights(bundle.parts, init / WEIGHTS)
    elif config.features.normalize == "corpus":
        bundle.features.fit(datamodule.sample_waveforms())
    return bundle


def _check_utterances(state: Path, datamodule: SpeechDataModule) -> None:
    """Raise ConfigError where a run to resume was begun with other utterances.

    A run of an older version has no digest to compare, and passes.
    """
    digest = state / _UTTERANCES
    if states(state) and digest.exists() and digest.read_text("utf-8") != datamodule.digest:
        raise ConfigError(
            f"{state.parent}: this run was begun with other utterances of data.train, data.dev or "
            "data.replay: continue with the same, or give another folder"
        )


def _write_run_files(
    config: Config, datamodule: SpeechDataModule, bundle: Bundle, state: Path
) -> None:
    """Write tokens, recipe and the digest of the utterances of a run.

    Raises AsrError where the disk is too small for the whole run.
    """
    (state / _FINISHED).unlink(missing_ok=True)
    if not states(state):  # a run that resumes has its files already
        check_room(state, bundle.model, config.training.average)
    write_atomically(state / TOKENIZER, lambda path: path.write_bytes(bundle.tokenizer.model))
    write_text(state / CONFIG, dump_config(config))
    write_text(state / _UTTERANCES, datamodule.digest)
