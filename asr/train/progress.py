"""What a watcher sees of a run: a bar within an epoch, one line after it."""

import time
from math import nan
from typing import Any

import lightning as L
from lightning.pytorch.callbacks import Callback
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from torch import Tensor, stack


class EpochLines(Callback):
    """Losses, CER and time after each epoch's validation; a bar where a terminal watches."""

    def __init__(self) -> None:
        self.console = Console(stderr=True)
        self.bar: Progress | None = None
        self.start = 0.0
        self.losses: list[Tensor] = []

    def on_train_epoch_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Open the bar."""
        self.start = time.monotonic()
        self.losses = []
        self.bar = Progress(
            TextColumn("epoch {task.description}"), BarColumn(), MofNCompleteColumn(),
            TextColumn("loss {task.fields[loss]:.3f}"), TimeRemainingColumn(),
            console=self.console, transient=True, disable=not self.console.is_terminal,
        )  # fmt: skip
        self.bar.add_task(
            f"{trainer.current_epoch + 1}/{trainer.max_epochs}",
            total=int(trainer.num_training_batches),
            loss=nan,
        )
        self.bar.start()

    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, outputs: Any, batch: Any,
        batch_idx: int,
    ) -> None:  # fmt: skip
        """Move the bar."""
        if outputs:  # nothing came of a batch of which no recording could be read
            self.losses.append(outputs["loss"].detach())
        if (
            self.bar and self.losses and self.console.is_terminal
        ):  # a GPU waits where a number is looked at
            loss = float(self.losses[-1])
            self.bar.update(self.bar.task_ids[0], completed=batch_idx + 1, loss=loss)

    def on_train_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Close the bar, write the line."""
        self._close()
        metrics = trainer.callback_metrics
        values = "  ".join(
            f"{name} {float(metrics[key]):.4f}"
            for name, key in (("dev loss", "val/loss"), ("dev CER", "val/cer"))
            if key in metrics
        )
        self.console.print(
            f"epoch {trainer.current_epoch + 1}/{trainer.max_epochs}  "
            f"train loss {self._mean_loss():.4f}  {values}  "
            f"step {trainer.global_step}  {time.monotonic() - self.start:.0f} s",
            highlight=False,
        )

    def on_exception(
        self,
        trainer: L.Trainer,
        pl_module: L.LightningModule,
        exception: BaseException,
    ) -> None:
        """Leave the terminal as it was."""
        self._close()

    def _mean_loss(self) -> float:
        return float(stack(self.losses).mean()) if self.losses else nan

    def _close(self) -> None:
        if self.bar:
            self.bar.stop()
            self.bar = None
