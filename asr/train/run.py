"""A training run, top to bottom: cuts, tokens, weights, epochs, a bundle.

Beside the bundle lies `training/`: `last.ckpt`, from which a run that was cut off goes on to the
same weights; the best epochs; TensorBoard's curves. Checkpoints are read as tensors and plain
values (`weights_only`), so that nobody's checkpoint can run code.
"""

import logging
import time
import warnings
from pathlib import Path
from typing import Any

import lightning as L
import torch
from lhotse import CutSet
from lightning.pytorch.callbacks import Callback, ModelCheckpoint
from lightning.pytorch.loggers import TensorBoardLogger
from torch.utils.data import DataLoader

from asr.bundle import WEIGHTS, Bundle, write_atomically
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
from asr.errors import ConfigError
from asr.recognizer import choose_device
from asr.tokenizer import Tokenizer
from asr.train.progress import EpochLines
from asr.train.task import RecognizerTask

log = logging.getLogger(__name__)

# Corpus statistics of the features come from so many utterances at most.
_FIT_UTTERANCES = 2000


class Corpus(L.LightningDataModule):
    """Train and dev batches of a recipe; a run's state knows how far into an epoch it is."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.config = config
        data = config.data
        train = trainable(load_cuts(data.train), data, data.train)
        self.train_cuts: CutSet = with_speeds(train, data.speed_factors)
        self.dev_cuts: CutSet = trainable(load_cuts(data.dev), data, data.dev)
        self.dataset: SpeechDataset | None = None
        self.done = 0

    def read_with(self, bundle: Bundle) -> None:
        """Features and tokens of the batches to come."""
        rate = self.config.features.sample_rate
        self.dataset = SpeechDataset(bundle.features, bundle.tokenizer, rate)

    def plan(self, epoch: int | None) -> list[CutSet]:
        """The batches of a training epoch, or of the dev cuts; the same whenever it is asked."""
        cuts = self.dev_cuts if epoch is None else self.train_cuts
        return plan_epoch(cuts, self.config.data.batch_seconds, self.config.seed, epoch)

    def train_dataloader(self) -> DataLoader[Batch]:
        """The epoch's batches, less those that a resumed run had done."""
        assert self.trainer is not None
        assert self.dataset is not None
        done, self.done = self.done, 0
        batches = EpochBatches(self.plan(self.trainer.current_epoch), done)
        return loader(self.dataset, batches, self.config.data.num_workers)

    def val_dataloader(self) -> DataLoader[Batch]:
        """All dev cuts."""
        assert self.dataset is not None
        return loader(self.dataset, EpochBatches(self.plan(None)), self.config.data.num_workers)


class LastState(Callback):
    """Keeps `last.ckpt`, written every so many steps and after each epoch, whole or not at all."""

    def __init__(self, path: Path, every: int, corpus: Corpus) -> None:
        self.path, self.every, self.corpus = path, every, corpus

    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, outputs: Any, batch: Any,
        batch_idx: int,
    ) -> None:  # fmt: skip
        """Save in mid-epoch; the epoch's end has its own save, after validation."""
        if trainer.global_step % self.every == 0 and not trainer.is_last_batch:
            self._save(trainer, batch_idx + 1)

    def on_train_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Save between epochs."""
        self._save(trainer, 0)

    def _save(self, trainer: L.Trainer, done: int) -> None:
        self.batches_done = done
        write_atomically(self.path, trainer.save_checkpoint)

    def state_dict(self) -> dict[str, Any]:
        """How many batches of the epoch were done."""
        return {"batches_done": self.batches_done}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Let the corpus begin after them."""
        self.batches_done = self.corpus.done = state_dict["batches_done"]

    batches_done = 0


def train(config: Config, out: Path, resume: bool = False, device: str = "auto") -> Path:
    """Train a recipe into the bundle `out`, and return it.

    Raises ConfigError where `out` holds another run, DataError where the cuts are unusable.
    """
    warnings.filterwarnings("ignore", module="lightning|lhotse|torch")
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    state = out / "training"
    if _is_finished(config, out, state, resume):
        log.info("%s: this run is finished, nothing is left to do", out)
        return out
    L.seed_everything(config.seed, verbose=False)
    corpus = Corpus(config)
    bundle = _bundle(config, corpus, state)
    corpus.read_with(bundle)
    log.info(
        "%d utterances, %.1f h; %d tokens; %.2f M parameters", len(corpus.train_cuts),
        sum(cut.duration for cut in corpus.train_cuts) / 3600, bundle.tokenizer.vocab_size,
        count_parameters(bundle.model) / 1e6,
    )  # fmt: skip
    task = RecognizerTask(bundle, total_steps=len(corpus.plan(0)) * config.training.epochs)
    best = ModelCheckpoint(
        state, "epoch{epoch}", monitor="val/cer", save_top_k=config.training.average,
        auto_insert_metric_name=False, enable_version_counter=False, save_weights_only=True,
    )  # fmt: skip
    last = LastState(state / "last.ckpt", config.training.checkpoint_steps, corpus)
    start = time.monotonic()
    trainer = _trainer(config, state, device, [best, EpochLines(), last])
    begun = last.path if last.path.is_file() else None
    try:
        trainer.fit(task, corpus, ckpt_path=begun, weights_only=True)
    except SystemExit:  # what Lightning makes of Ctrl-C
        raise KeyboardInterrupt from None
    average_into(bundle, [Path(path) for path in best.best_k_models])
    facts = {
        "training utterances": f"{len(corpus.train_cuts)} of {config.data.train}",
        "epochs": config.training.epochs,
        "training time": f"{(time.monotonic() - start) / 60:.1f} min",
        "dev CER of the best epoch, greedy": f"{float(best.best_model_score or 1.0):.2%}",
    }
    bundle.save(out, model_card(bundle.config, count_parameters(bundle.model), facts))
    return out


def average_into(bundle: Bundle, checkpoints: list[Path]) -> None:
    """Give a bundle the mean of its weights in several checkpoints."""
    states = [torch.load(path, map_location="cpu", weights_only=True) for path in checkpoints]
    weights = [
        {k.removeprefix("parts."): v for k, v in s["state_dict"].items() if k.startswith("parts.")}
        for s in states
    ]
    mean = {k: torch.stack([w[k].double() for w in weights]).mean(0) for k in weights[0]}
    bundle.parts.load_state_dict(mean)


def _is_finished(config: Config, out: Path, state: Path, resume: bool) -> bool:
    """Whether the very run was done before; a different one in its place is refused."""
    if not (state / "config.yaml").is_file():
        return False
    if not resume:
        raise ConfigError(
            f"{out}: holds a run already: go on with it by --resume, or give another --out"
        )
    before = load_config(state / "config.yaml")
    for part in ("seed", "features", "tokenizer", "model"):
        if getattr(before, part) != getattr(config, part):
            raise ConfigError(
                f"{out}: was begun with another `{part}` (see {state / 'config.yaml'}): give "
                "another --out, or the recipe as it was"
            )
    return before == config and (out / WEIGHTS).is_file()


def _bundle(config: Config, corpus: Corpus, state: Path) -> Bundle:
    """Fresh weights, and the tokens and statistics of the training cuts alone."""
    tokenizer = Tokenizer.train(map(text_of, corpus.train_cuts), config.tokenizer)
    expected = config.tokenizer.vocab_size
    if config.tokenizer.kind == "char" and expected not in (None, tokenizer.vocab_size):
        log.warning(
            "the recipe expects %d tokens, the corpus has %d: the corpus's own are used",
            expected, tokenizer.vocab_size,
        )  # fmt: skip
    bundle = Bundle.create(config, tokenizer)
    if config.features.normalize == "corpus":
        some = corpus.train_cuts.subset(first=min(_FIT_UTTERANCES, len(corpus.train_cuts)))
        rate = config.features.sample_rate
        bundle.features.fit(read_wave(cut, rate) for cut in some)
    state.mkdir(parents=True, exist_ok=True)
    write_atomically(state / "config.yaml", lambda p: p.write_text(dump_config(config), "utf-8"))
    return bundle


def _trainer(config: Config, state: Path, device: str, callbacks: list[Callback]) -> L.Trainer:
    accelerator = choose_device(device).type
    return L.Trainer(
        accelerator="gpu" if accelerator == "cuda" else "cpu",
        devices=1,
        precision="bf16-mixed" if accelerator == "cuda" else "32-true",
        max_epochs=config.training.epochs,
        gradient_clip_val=config.training.clip_norm,
        callbacks=callbacks,
        logger=TensorBoardLogger(state, name="", version="curves"),
        reload_dataloaders_every_n_epochs=1,
        num_sanity_val_steps=0,
        use_distributed_sampler=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        deterministic=accelerator == "cpu",
        log_every_n_steps=10,
    )
