"""What a run leaves on the disk while it goes: its state, the best weights, its history."""

import csv
import io
import time
from pathlib import Path
from typing import Any

import lightning as L
import torch
from lightning.pytorch.callbacks import Callback
from safetensors.torch import save

from asr.bundle import Bundle, read_tensors
from asr.config import Config
from asr.errors import ConfigError, DataError
from asr.runtime.files import write_atomically
from asr.train.datamodule import SpeechDataModule
from asr.train.module import SpeechModule

LAST = "last.ckpt"
HISTORY = ("epoch", "train_loss", "val_loss", "val_cer", "seconds")


class Checkpoints(Callback):
    """`last.ckpt`, from which a run goes on; the weights of the best epochs; `history.csv`.

    Lightning's own ModelCheckpoint saves the best after all other callbacks, so that a state
    saved at an epoch's end would not know of it. Here an epoch's weights are written first, then
    the state that names them, then those that are no longer wanted go: a kill between any two
    loses nothing. All processes call the hooks, rank 0 writes.
    """

    def __init__(self, folder: Path, config: Config, corpus: SpeechDataModule) -> None:
        self.folder, self.config, self.corpus = folder, config.training, corpus
        self.history: list[dict[str, float]] = []
        self.batches_done = 0
        self.seconds_before, self.begun = 0.0, time.monotonic()

    @property
    def last(self) -> Path:
        """The state of the run."""
        return self.folder / LAST

    @property
    def ranked(self) -> list[dict[str, float]]:
        """The epochs, best CER first; of equals the later."""
        return sorted(self.history, key=lambda row: (row["val_cer"], -row["epoch"]))

    @property
    def best(self) -> list[Path]:
        """The weights of the best epochs, best first."""
        return [self._weights(int(row["epoch"])) for row in self.ranked[: self.config.average]]

    @property
    def seconds(self) -> float:
        """Time spent on the run, in all its sessions."""
        return self.seconds_before + time.monotonic() - self.begun

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """A run that had stopped early does not go on."""
        trainer.should_stop = self._is_stale()

    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, outputs: Any, batch: Any,
        batch_idx: int,
    ) -> None:  # fmt: skip
        """Save in mid-epoch; the epoch's end has its own save, after validation."""
        assert isinstance(pl_module, SpeechModule)
        if trainer.is_last_batch:
            return
        if pl_module.stopping or trainer.global_step % self.config.checkpoint_steps == 0:
            self._save(trainer, batch_idx + 1)
        if pl_module.stopping:
            raise KeyboardInterrupt

    def on_train_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Save the epoch's weights and the state; runs after validation."""
        assert isinstance(pl_module, SpeechModule)
        if not trainer.global_step and not pl_module.counters.skipped:
            raise DataError(f"{self.corpus.config.data.train}: not one recording could be read")
        metrics, epoch = trainer.callback_metrics, trainer.current_epoch + 1
        values = (epoch, pl_module.counters.mean_loss, float(metrics["val/loss"]),
                  float(metrics["val/cer"]),
                  self.seconds - sum(row["seconds"] for row in self.history))  # fmt: skip
        self.history.append(dict(zip(HISTORY, values, strict=True)))
        if trainer.is_global_zero:
            weights = save(pl_module.model.state_dict())
            write_atomically(self._weights(epoch), lambda path: path.write_bytes(weights))
        self._save(trainer, 0)
        if trainer.is_global_zero:
            self._write_history()
            for path in set(self.folder.glob("epoch*.safetensors")) - set(self.best):
                path.unlink()
        if pl_module.stopping:
            raise KeyboardInterrupt
        trainer.should_stop = self._is_stale()

    def state_dict(self) -> dict[str, Any]:
        """How far the run is, and what it saw on its way."""
        return {
            "batches_done": self.batches_done,
            "step_seconds": self.corpus.step_seconds,
            "history": self.history,
            "seconds": self.seconds,
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Let the corpus begin after the batches that were done."""
        before, now = state_dict["step_seconds"], self.corpus.step_seconds
        if abs(before - now) > 1e-6 * before:
            raise ConfigError(
                f"{self.last}: a step held {before:g} s of audio, it would now hold {now:g} "
                "(data.batch_seconds x training.accumulate x processes): set training.accumulate "
                "so that they are the same"
            )
        self.batches_done = self.corpus.done = state_dict["batches_done"]
        self.history, self.seconds_before = state_dict["history"], state_dict["seconds"]
        self.begun = time.monotonic()

    def _is_stale(self) -> bool:
        """Whether `training.patience` epochs brought no better CER."""
        if self.config.patience is None or not self.history:
            return False
        best = min(self.history, key=lambda row: (row["val_cer"], row["epoch"]))
        return len(self.history) - best["epoch"] >= self.config.patience

    def _save(self, trainer: L.Trainer, done: int) -> None:
        self.batches_done = done
        if trainer.is_global_zero:
            write_atomically(self.last, trainer.save_checkpoint)
        else:
            trainer.save_checkpoint(self.last)  # writes nothing, and waits for rank 0

    def _write_history(self) -> None:
        text = io.StringIO()
        writer = csv.DictWriter(text, HISTORY, lineterminator="\n")
        writer.writeheader()
        writer.writerows(self.history)
        path = self.folder / "history.csv"
        write_atomically(path, lambda path: path.write_text(text.getvalue(), "utf-8"))

    def _weights(self, epoch: int) -> Path:
        return self.folder / f"epoch{epoch}.safetensors"


def average_into(bundle: Bundle, checkpoints: list[Path]) -> None:
    """Give a bundle's network the mean of its weights in several files, the first being the best.

    Weights of sparse maps that stand in other places than the best's are not to be averaged.
    """
    weights = [read_tensors(path) for path in checkpoints]
    places = [k for k, v in weights[0].items() if not v.is_floating_point()]
    weights = [w for w in weights if all(torch.equal(w[k], weights[0][k]) for k in places)]
    mean = {k: torch.stack([w[k].double() for w in weights]).mean(0) for k in weights[0]}
    bundle.model.load_state_dict(mean)
