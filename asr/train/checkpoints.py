"""Files of a run in progress: its state, the weights of its best epochs, its history."""

import errno
import logging
import os
import shutil
import sys
import time
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

import lightning as L
import torch
from lightning.pytorch.callbacks import Callback
from torch import nn

from asr.errors import AsrError, ConfigError, DataError
from asr.model.size import count_parameters
from asr.runtime.files import write_atomically, write_csv
from asr.runtime.tensors import read_tensors, write_tensors
from asr.train.datamodule import TrainingData
from asr.train.distributed import on_stop, rank
from asr.train.step import TrainingModule

log = logging.getLogger(__name__)

LAST = "last.ckpt"
PREVIOUS = "previous.ckpt"
HISTORY = "history.csv"
# An epoch enters the mean if its metric is at most _NEAR times the best one's plus _NEAR_POINTS.
_NEAR, _NEAR_POINTS = 1.05, 1.0
OnBest = Callable[["Checkpoints"], None]


class Checkpoints(Callback):
    """`last.ckpt`, from which a run resumes; the weights of the best epochs; `history.csv`.

    `previous.ckpt` is the state before; a run resumes from it where `last.ckpt` is damaged.

    Lightning's own ModelCheckpoint saves the best weights after all other callbacks, so that a
    state saved at an epoch's end would not include them. The order here is: the epoch's weights,
    the output of `on_best`, the state, and only then the deletion of old weights. So a kill between
    any two loses nothing. All processes call the hooks, rank 0 writes.
    """

    def __init__(
        self,
        folder: Path,
        module: TrainingModule,
        datamodule: TrainingData,
        on_best: OnBest,
        on_saved: Callable[[], None] = lambda: None,
    ) -> None:
        self.folder, self.datamodule = folder, datamodule
        self.on_best, self.on_saved = on_best, on_saved
        self.training, self.metric = module.config.training, module.dev_metrics[-1]
        self.last = folder / LAST
        self.history: list[dict[str, float]] = []
        self.seconds_before, self.start = 0.0, time.monotonic()

    @property
    def ranked(self) -> list[dict[str, float]]:
        """Return the history, the best epoch first; among equals the later one first."""
        return self._rank(self.history)

    @property
    def best(self) -> list[Path]:
        """Return the files of the weights of the best epochs, the best first."""
        return self._best_of(self.history)

    @property
    def seconds(self) -> float:
        """Return the seconds spent on the run in all its sessions."""
        return self.seconds_before + time.monotonic() - self.start

    def on_train_start(self, trainer: L.Trainer, pl_module: Any) -> None:
        """Let signals stop the run; end at once a run that `training.patience` had ended before."""

        def stop(number: int) -> None:
            if not rank():
                log.warning("the run stops after this step; once more to stop at once")
            pl_module.signal = number

        on_stop(stop)
        trainer.should_stop = self._is_stale()

    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Save the state within an epoch; the epoch's end is saved after validation."""
        if trainer.is_last_batch:
            return
        if pl_module.stopping or trainer.global_step % self.training.checkpoint_steps == 0:
            self._save(trainer, batch_idx + 1)
        if pl_module.stopping:
            raise KeyboardInterrupt

    def on_train_epoch_end(self, trainer: L.Trainer, pl_module: Any) -> None:
        """Save the epoch's weights and the state; runs after validation."""
        module: TrainingModule = pl_module
        if not trainer.global_step and not module.counters.skipped:
            raise DataError(
                f"{self.datamodule.config.data.train_names}: not one recording could be read"
            )
        epoch, before = trainer.current_epoch + 1, sum(row["seconds"] for row in self.history)
        row = {"epoch": epoch, "train_loss": module.counters.mean_loss}
        for name in module.dev_metrics:
            row[name] = round(float(trainer.callback_metrics[name.replace("_", "/", 1)]), 6)
        if module.counters.confidence_threshold is not None:
            row["confidence_threshold"] = module.counters.confidence_threshold
        row["seconds"] = self.seconds - before
        self.history.append(row)
        if trainer.is_global_zero:
            write_tensors(self._weights(epoch), module.weights(), {})
            if self._weights(epoch) in self.best:
                self.on_best(self)
        self._save(trainer, 0)
        if trainer.is_global_zero:
            write_csv(self.folder / HISTORY, self.history)
            # previous.ckpt, the substitute of a damaged state, is of this epoch or the one before.
            needed = {*self.best, *self._best_of(self.history[:-1])}
            for path in set(self.folder.glob("epoch*.safetensors")) - needed:
                path.unlink()
        if module.stopping:
            raise KeyboardInterrupt
        trainer.should_stop = self._is_stale()

    def state_dict(self) -> dict[str, Any]:
        """Return the epochs so far and the seconds that they took."""
        return {"history": self.history, "seconds": self.seconds}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore the epochs and the time."""
        self.history, self.seconds_before = state_dict["history"], state_dict["seconds"]
        self.start = time.monotonic()

    def _is_stale(self) -> bool:
        """Return whether `training.patience` epochs brought no improvement."""
        if self.training.patience is None or not self.history:
            return False
        best = min(self.history, key=lambda row: (row[self.metric], row["epoch"]))
        return len(self.history) - best["epoch"] >= self.training.patience

    def _save(self, trainer: L.Trainer, done: int) -> None:
        self.datamodule.done = done
        if trainer.is_global_zero:
            write_atomically(self.last, lambda path: self._write_state(trainer, path))
            self.on_saved()
        else:
            trainer.save_checkpoint(self.last)  # writes nothing, and waits for rank 0

    def _write_state(self, trainer: L.Trainer, path: Path) -> None:
        trainer.save_checkpoint(path)
        if self.last.is_file():
            self.last.replace(self.folder / PREVIOUS)

    def _rank(self, rows: list[dict[str, float]]) -> list[dict[str, float]]:
        return sorted(rows, key=lambda row: (row[self.metric], -row["epoch"]))

    def _best_of(self, rows: list[dict[str, float]]) -> list[Path]:
        ranked = self._rank(rows)[: self.training.average]
        # A run of few epochs has early ones among its best, which would spoil the mean.
        limit = _NEAR * ranked[0][self.metric] + _NEAR_POINTS if ranked else 0.0
        near = [self._weights(int(row["epoch"])) for row in ranked if row[self.metric] <= limit]
        # A run that began with a smaller `average` has kept fewer; the best is always there.
        return [path for path in near if path == near[0] or path.is_file()]

    def _weights(self, epoch: int) -> Path:
        return self.folder / f"epoch{epoch}.safetensors"


def states(folder: Path) -> list[Path]:
    """Return the states that a run's folder holds, the latest first."""
    return [path for path in (folder / LAST, folder / PREVIOUS) if path.is_file()]


def check_room(folder: Path, model: nn.Module, average: int) -> None:
    """Make the folder. Raises AsrError where its disk is too small for a whole run."""
    folder.mkdir(parents=True, exist_ok=True)
    # Copies of the weights: the best epochs and two more; three states, each with Adam's two
    # moments: the last, the one before and one being written; the bundle and its successor.
    copies = average + 2 + 3 * 3 + 2
    size = 4 * copies * count_parameters(model)
    try:
        if shutil.disk_usage(folder).free < size:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        with TemporaryFile(dir=folder) as file:
            if sys.platform == "linux":  # elsewhere neither quotas nor full disks are found here
                os.posix_fallocate(file.fileno(), 0, size)
    except OSError as error:
        raise AsrError(
            f"{folder}: no room for the {size / 1e6:.0f} MB that this run will write "
            f"({error.strerror}): free some, or give another folder"
        ) from error


def has_run(out: Path, resume: bool) -> bool:
    """Return whether a folder holds a run. Raises ConfigError if it does and `resume` is False."""
    if not states(out / "training"):
        return False
    if not resume:
        raise ConfigError(
            f"{out}: holds a run already: continue it by --resume, or give another --out"
        )
    return True


def average_into(model: nn.Module, checkpoints: list[Path]) -> None:
    """Load the mean of the weights in several files, the best epoch's first.

    A file whose sparse weights have other indices than the first one's is left out.
    """
    weights = [read_tensors(path) for path in checkpoints]
    indices = [k for k, v in weights[0].items() if not v.is_floating_point()]
    weights = [w for w in weights if all(torch.equal(w[k], weights[0][k]) for k in indices)]
    mean = {k: torch.stack([w[k].double() for w in weights]).mean(0) for k in weights[0]}
    model.load_state_dict(mean)
