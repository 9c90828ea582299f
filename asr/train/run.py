"""A training run, top to bottom: cuts, tokens, weights, epochs, a bundle.

Beside the bundle lies `training/`: `last.ckpt`, from which a run that was cut off goes on to the
same weights; the best epochs; TensorBoard's curves. Checkpoints are read as tensors and plain
values (`weights_only`), so that nobody's checkpoint can run code.
"""

import logging
import random
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import lightning as L
import torch
from lhotse import CutSet
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.loggers import TensorBoardLogger
from safetensors.torch import save
from torch import Tensor
from torch.utils.data import DataLoader

from asr import stored
from asr.bundle import CONFIG, TOKENIZER, WEIGHTS, Bundle, read_tensors, write_atomically
from asr.card import count_parameters, model_card
from asr.config import Config, dump_config, load_config
from asr.data import (
    Batch,
    EpochBatches,
    SpeechDataset,
    load_cuts,
    loader,
    plan_epoch,
    read_wave,
    text_of,
    trainable,
    with_speeds,
)
from asr.errors import AudioError, ConfigError, DataError
from asr.recognizer import choose_device
from asr.tokenizer import Tokenizer
from asr.train.progress import EpochLines
from asr.train.task import RecognizerTask

log = logging.getLogger(__name__)

# Corpus statistics of the features come from so many utterances at most.
_FIT_UTTERANCES = 2000
_FINISHED = "finished"
# What a run that goes on must share with its beginning.
_FIXED = ("seed", "data", "features", "tokenizer", "model")


class Corpus(L.LightningDataModule):
    """Train and dev batches of a recipe; a run's state knows how far into an epoch it is."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.config = config
        data = config.data
        train = trainable(load_cuts(data.train), data, data.train)
        self.train_cuts: CutSet = with_speeds(train, data.speed_factors)
        self.dev_cuts: CutSet = trainable(load_cuts(data.dev), data, data.dev)
        stored.check(train, config.features, data.train)
        stored.check(self.dev_cuts, config.features, data.dev)
        self.dataset: SpeechDataset | None = None
        self.done = 0

    @property
    def unreadable(self) -> set[str]:
        """Cuts that were skipped so far, as far as this process read them."""
        return self.dataset.failed if self.dataset else set()

    def some_waves(self) -> Iterator[Tensor]:
        """A random part of the training recordings, those that can be read."""
        cuts = list(self.train_cuts)
        random.Random(self.config.seed).shuffle(cuts)
        for cut in cuts[:_FIT_UTTERANCES]:
            try:
                yield read_wave(cut, self.config.features.sample_rate)
            except AudioError as error:
                log.warning("skipped: %s", error)

    def read_with(self, bundle: Bundle) -> None:
        """Features and tokens of the batches to come."""
        rate = self.config.features.sample_rate
        self.dataset = SpeechDataset(bundle.features, bundle.tokenizer, rate)

    def plan(self, epoch: int | None) -> list[CutSet]:
        """The batches of a training epoch, or of the dev cuts; the same whenever it is asked."""
        cuts = self.dev_cuts if epoch is None else self.train_cuts
        return plan_epoch(cuts, self.config.data.batch_seconds, self.config.seed, epoch)

    def train_dataloader(self) -> DataLoader[Batch | None]:
        """The epoch's batches, less those that a resumed run had done."""
        assert self.trainer is not None
        assert self.dataset is not None
        done, self.done = self.done, 0
        batches = EpochBatches(self.plan(self.trainer.current_epoch), done)
        return loader(self.dataset, batches, self.config.data.num_workers)

    def val_dataloader(self) -> DataLoader[Batch | None]:
        """All dev cuts."""
        assert self.dataset is not None
        return loader(self.dataset, EpochBatches(self.plan(None)), self.config.data.num_workers)


class Checkpoints(Callback):
    """`last.ckpt`, from which a run goes on, and the weights of the best epochs.

    Lightning's own ModelCheckpoint saves the best after all other callbacks, so that a state
    saved at an epoch's end would not know of it. Here an epoch's weights are written first, then
    the state that names them, then those that are no longer wanted go: a kill between any two
    loses nothing.
    """

    def __init__(self, folder: Path, config: Config, corpus: Corpus) -> None:
        self.folder, self.corpus = folder, corpus
        self.every, self.n_best = config.training.checkpoint_steps, config.training.average
        self.cer_by_epoch: dict[int, float] = {}
        self.batches_done = 0

    @property
    def last(self) -> Path:
        """The state of the run."""
        return self.folder / "last.ckpt"

    @property
    def best(self) -> list[Path]:
        """The weights of the best epochs, best first; of equals the later."""
        ranked = sorted(self.cer_by_epoch, key=lambda epoch: (self.cer_by_epoch[epoch], -epoch))
        return [self._weights(epoch) for epoch in ranked[: self.n_best]]

    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, outputs: Any, batch: Any,
        batch_idx: int,
    ) -> None:  # fmt: skip
        """Save in mid-epoch; the epoch's end has its own save, after validation."""
        if trainer.global_step % self.every == 0 and not trainer.is_last_batch:
            self._save(trainer, batch_idx + 1)

    def on_train_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Save the epoch's weights and the state; runs after validation."""
        if not trainer.global_step:
            raise DataError(f"{self.corpus.config.data.train}: not one recording could be read")
        assert isinstance(pl_module, RecognizerTask)
        epoch, weights = trainer.current_epoch, save(pl_module.model.state_dict())
        write_atomically(self._weights(epoch), lambda path: path.write_bytes(weights))
        self.cer_by_epoch[epoch] = float(trainer.callback_metrics["val/cer"])
        self._save(trainer, 0)
        for path in set(self.folder.glob("epoch*.safetensors")) - set(self.best):
            path.unlink()

    def state_dict(self) -> dict[str, Any]:
        """How many batches of the epoch were done, and how good past epochs were."""
        return {"batches_done": self.batches_done, "cer_by_epoch": self.cer_by_epoch}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Let the corpus begin after the batches that were done."""
        self.batches_done = self.corpus.done = state_dict["batches_done"]
        self.cer_by_epoch = state_dict["cer_by_epoch"]

    def _save(self, trainer: L.Trainer, done: int) -> None:
        self.batches_done = done
        write_atomically(self.last, trainer.save_checkpoint)

    def _weights(self, epoch: int) -> Path:
        return self.folder / f"epoch{epoch}.safetensors"


def train(config: Config, out: Path, resume: bool = False, device: str = "auto") -> Path:
    """Train a recipe into the bundle `out`, and return it.

    Raises ConfigError where `out` holds another run, DataError where the cuts are unusable.
    """
    chosen, state = choose_device(device), out / "training"
    if _is_finished(config, out, resume):
        log.info("%s: this run is finished, nothing is left to do", out)
        return out
    L.seed_everything(config.seed, verbose=False)
    corpus = Corpus(config)
    bundle = _begin(config, corpus, state)
    corpus.read_with(bundle)
    log.info(
        "%d utterances, %.1f h; %d tokens; %.2f M parameters", len(corpus.train_cuts),
        sum(cut.duration for cut in corpus.train_cuts) / 3600, bundle.tokenizer.vocab_size,
        count_parameters(bundle.model) / 1e6,
    )  # fmt: skip
    checkpoints = Checkpoints(state, config, corpus)
    start = time.monotonic()
    _fit(config, bundle, corpus, checkpoints, chosen)
    average_into(bundle, checkpoints.best)
    facts = {
        "training cuts": f"{len(corpus.train_cuts)} from {config.data.train}",
        "epochs": config.training.epochs,
        "training time, last session": f"{(time.monotonic() - start) / 60:.1f} min on {chosen}",
        "dev CER of the best epoch, greedy": f"{min(checkpoints.cer_by_epoch.values()):.2%}",
        "recordings skipped as unreadable": len(corpus.unreadable),
    }
    bundle.save(out, model_card(bundle.config, count_parameters(bundle.model), facts))
    (state / _FINISHED).touch()
    return out


def average_into(bundle: Bundle, checkpoints: list[Path]) -> None:
    """Give a bundle's network the mean of its weights in several files."""
    weights = [read_tensors(path) for path in checkpoints]
    mean = {k: torch.stack([w[k].double() for w in weights]).mean(0) for k in weights[0]}
    bundle.model.load_state_dict(mean)


def _is_finished(config: Config, out: Path, resume: bool) -> bool:
    """Whether the very run was done before; a different one in its place is refused."""
    state = out / "training"
    if not (state / CONFIG).is_file():
        return False
    if not resume:
        raise ConfigError(
            f"{out}: holds a run already: go on with it by --resume, or give another --out"
        )
    before = load_config(state / CONFIG)
    changed = [p for p in _FIXED if getattr(before, p) != getattr(config, p)]
    if config.training.epochs < before.training.epochs:
        changed.append("training.epochs (fewer)")
    if changed:
        raise ConfigError(
            f"{out}: was begun with another {', '.join(changed)} (see {state / CONFIG}): give "
            "another --out, or the recipe as it was"
        )
    return before == config and (state / _FINISHED).is_file() and (out / WEIGHTS).is_file()


def _begin(config: Config, corpus: Corpus, state: Path) -> Bundle:
    """Fresh weights, and the tokens and statistics of the training cuts alone.

    The tokens of a run that goes on are those that it began with.
    """
    if (state / CONFIG).is_file():
        tokenizer = Tokenizer((state / TOKENIZER).read_bytes())
    else:
        tokenizer = Tokenizer.train(map(text_of, corpus.train_cuts), config.tokenizer)
    expected = config.tokenizer.vocab_size
    if config.tokenizer.kind == "char" and expected not in (None, tokenizer.vocab_size):
        log.warning(
            "the recipe expects %d tokens, the corpus has %d: the corpus's own are used",
            expected, tokenizer.vocab_size,
        )  # fmt: skip
    bundle = Bundle.create(config, tokenizer)
    if config.features.normalize == "corpus":
        bundle.features.fit(corpus.some_waves())
    state.mkdir(parents=True, exist_ok=True)
    for left in [*state.glob(".*.tmp"), state / _FINISHED]:
        left.unlink(missing_ok=True)
    write_atomically(state / TOKENIZER, lambda path: path.write_bytes(tokenizer.model))
    write_atomically(state / CONFIG, lambda path: path.write_text(dump_config(config), "utf-8"))
    return bundle


def _fit(
    config: Config, bundle: Bundle, corpus: Corpus, checkpoints: Checkpoints, device: torch.device
) -> None:
    """Let Lightning run the epochs, from the last state if there is one."""
    on_gpu = device.type == "cuda"
    task = RecognizerTask(bundle, total_steps=len(corpus.plan(0)) * config.training.epochs)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", module="lightning|lhotse|torch")
        logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
        trainer = L.Trainer(
            accelerator="gpu" if on_gpu else "cpu",
            devices=[device.index or 0] if on_gpu else 1,
            precision="bf16-mixed" if on_gpu else "32-true",
            max_epochs=config.training.epochs,
            gradient_clip_val=config.training.clip_norm,
            callbacks=[EpochLines(), checkpoints],
            logger=TensorBoardLogger(checkpoints.folder, name="", version="curves"),
            enable_checkpointing=False,
            reload_dataloaders_every_n_epochs=1,
            num_sanity_val_steps=0,
            use_distributed_sampler=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            deterministic=not on_gpu,
            log_every_n_steps=10,
        )
        begun = checkpoints.last if checkpoints.last.is_file() else None
        try:
            trainer.fit(task, corpus, ckpt_path=begun, weights_only=True)
        except SystemExit:  # what Lightning makes of Ctrl-C
            raise KeyboardInterrupt from None
