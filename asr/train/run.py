"""A training run, top to bottom: cuts, tokens, weights, epochs, a bundle.

Beside the bundle lies `training/`: `last.ckpt`, from which a run that was cut off goes on to the
same weights; the best epochs; TensorBoard's curves. Checkpoints are read as tensors and plain
values (`weights_only`), so that nobody's checkpoint can run code.
"""

import logging
import os
import sys
from pathlib import Path

import lightning as L
import torch

from asr.bundle import CONFIG, TOKENIZER, WEIGHTS, Bundle, load_weights
from asr.config import Config, dump_config, load_config
from asr.data.manifest import text_of
from asr.errors import AsrError, ConfigError
from asr.model.size import count_parameters
from asr.reporting.cost import Cost, write_cost
from asr.reporting.model_card import model_card
from asr.runtime.devices import choose_device
from asr.runtime.files import write_atomically
from asr.runtime.memory import keep_buffers
from asr.schema import FrozenModel
from asr.tokenizer import Tokenizer
from asr.train.checkpoints import LAST, Checkpoints, average_into
from asr.train.datamodule import SpeechDataModule
from asr.train.distributed import init_distributed, rank, rank_zero_first, world_size
from asr.train.energy import CostMeter
from asr.train.module import SpeechModule
from asr.train.trainer import check_precision, fit

log = logging.getLogger(__name__)

_FINISHED = "finished"
# What a run that goes on must share with its beginning; of the data all but how they are read.
_FIXED = ("seed", "data", "features", "tokenizer", "model")
_FREE = {"batch_seconds": 1.0, "num_workers": 0}


def train(config: Config, out: Path, resume: bool = False, device: str = "auto") -> Path:
    """Train a recipe into the bundle `out`, and return it; under torchrun, with its processes.

    Raises ConfigError where `out` holds another run, DataError where the cuts are unusable.
    """
    chosen, state = choose_device(device), out / "training"
    check_precision(config, chosen)
    with init_distributed(chosen) as chosen:
        if rank():
            logging.getLogger("asr").setLevel(logging.WARNING)
        if rank_zero_first(lambda: _is_finished(config, out, resume)):
            log.info("%s: this run is finished, nothing is left to do", out)
            return out
        keep_buffers()
        L.seed_everything(config.seed, verbose=False)
        corpus, bundle = rank_zero_first(lambda: _begin(config, state))
        checkpoints = Checkpoints(state, config, corpus)
        task = SpeechModule(bundle, corpus.total_steps)
        cost = CostMeter(bundle)
        fit(config, task, corpus, checkpoints, cost, chosen)
        if not rank():
            _finish(bundle, corpus, checkpoints, task, cost.total, out, chosen)
    return out


def _finish(
    bundle: Bundle, corpus: SpeechDataModule, checkpoints: Checkpoints, task: SpeechModule, cost: Cost,
    out: Path, device: torch.device,
) -> None:  # fmt: skip
    """The bundle of the best epochs, and what is to be told of the run."""
    average_into(bundle, checkpoints.best)
    counters = task.counters
    facts = {
        "training cuts": f"{len(corpus.train_cuts)} from {bundle.config.data.train}",
        "epochs": len(checkpoints.history),
        "steps": task.global_step,
        "steps skipped as not finite": counters.skipped,
        "trained on": f"{world_size()} x {device.type}",
        **cost.facts(),
        "dev CER of the best epoch, greedy": f"{checkpoints.ranked[0]['val_cer']:.2%}",
        "recordings skipped as unreadable": counters.unreadable,
        "utterances with more text than CTC can place": counters.too_short,
    }
    if bundle.config.decoding.chunk_seconds is None:
        seconds = min(max(1.0, round(corpus.duration_p99, 1)), 30.0)
        search = bundle.config.decoding.model_copy(update={"chunk_seconds": seconds})
        bundle.config = bundle.config.model_copy(update={"decoding": search})
    bundle.save(out, model_card(bundle.config, count_parameters(bundle.model), facts))
    write_cost(out, cost)
    (out / "training" / _FINISHED).touch()


def _is_finished(config: Config, out: Path, resume: bool) -> bool:
    """Whether the very run was done before; a different one in its place is refused."""
    state = out / "training"
    if not (state / LAST).is_file():  # what never came to a state has nothing to lose
        return False
    if not resume:
        raise ConfigError(
            f"{out}: holds a run already: go on with it by --resume, or give another --out"
        )
    before = load_config(state / CONFIG)
    changed = [p for p in _FIXED if _fixed(before, p) != _fixed(config, p)]
    if before.training.curriculum != config.training.curriculum:
        changed.append("training.curriculum")
    if config.training.epochs < before.training.epochs:
        changed.append("training.epochs (fewer)")
    if changed:
        raise ConfigError(
            f"{out}: was begun with another {', '.join(changed)} (see {state / CONFIG}): give "
            "another --out, or the recipe as it was"
        )
    return before == config and (state / _FINISHED).is_file() and (out / WEIGHTS).is_file()


def _fixed(config: Config, part: str) -> FrozenModel:
    return config.data.model_copy(update=_FREE) if part == "data" else getattr(config, part)


def _begin(config: Config, state: Path) -> tuple[SpeechDataModule, Bundle]:
    """The corpus; fresh weights, and the tokens and statistics of its training cuts alone.

    With `training.init` weights, tokens and statistics are that bundle's. The tokens of a run that
    goes on, and of all processes but rank 0, are those that it began with. Raises AsrError where
    the disk has no room for what the run will write, or the bundle is of another model.
    """
    corpus, init = SpeechDataModule(config), config.training.init
    if rank() or (state / LAST).is_file():
        tokenizer = Tokenizer((state / TOKENIZER).read_bytes())
    elif init:
        tokenizer = Bundle.load(init).tokenizer
    else:
        tokenizer = Tokenizer.train(map(text_of, corpus.train_cuts), config.tokenizer)
    bundle = Bundle.create(config, tokenizer)
    if init:
        load_weights(bundle.parts, init / WEIGHTS)
    elif config.features.normalize == "corpus":
        bundle.features.fit(corpus.sample_waveforms())
    corpus.read_with(bundle)
    if not rank():
        _warn_of_tokens(config, tokenizer)
        _write_beginning(config, bundle, state)
    log.info(
        "%d utterances, %.1f h; %d tokens; %.2f M parameters", len(corpus.train_cuts),
        sum(cut.duration for cut in corpus.train_cuts) / 3600, tokenizer.vocab_size,
        count_parameters(bundle.model) / 1e6,
    )  # fmt: skip
    return corpus, bundle


def _warn_of_tokens(config: Config, tokenizer: Tokenizer) -> None:
    expected = config.tokenizer.vocab_size
    if config.tokenizer.kind == "char" and expected not in (None, tokenizer.vocab_size):
        log.warning(
            "the recipe expects %d tokens, the corpus has %d: the corpus's own are used",
            expected, tokenizer.vocab_size,
        )  # fmt: skip


def _write_beginning(config: Config, bundle: Bundle, state: Path) -> None:
    """Tokens and recipe, where there is room for all that will follow them."""
    state.mkdir(parents=True, exist_ok=True)
    for left in [*state.glob(".*.tmp"), state / _FINISHED]:
        left.unlink(missing_ok=True)
    # Weights of the best epochs and of one more; a state with Adam's two moments, twice while one
    # takes the other's place; the bundle.
    copies = config.training.average + 1 + 2 * 3 + 1
    size = 4 * copies * count_parameters(bundle.model)
    room = state / "room"
    try:
        write_atomically(room, lambda path: _reserve(path, size))
    except AsrError as error:
        raise AsrError(
            f"{state}: no room for the {size / 1e6:.0f} MB that this run will write "
            f"({error.__cause__}): free some, or give another --out"
        ) from error
    room.unlink()
    write_atomically(state / TOKENIZER, lambda path: path.write_bytes(bundle.tokenizer.model))
    write_atomically(state / CONFIG, lambda path: path.write_text(dump_config(config), "utf-8"))


def _reserve(path: Path, size: int) -> None:
    with path.open("wb") as file:
        if sys.platform == "linux":  # quotas and full disks show here, others only in free space
            os.posix_fallocate(file.fileno(), 0, size)
