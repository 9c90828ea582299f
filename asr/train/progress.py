"""What a watcher sees of a run: a bar within an epoch, one line after it."""

from math import nan
from typing import Any

import lightning as L
from lightning.pytorch.callbacks import Callback
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from asr.train.checkpoints import Checkpoints
from asr.train.distributed import rank


class EpochLines(Callback):
    """Losses, CER and time after each epoch's validation; a bar where a terminal watches."""

    def __init__(self, checkpoints: Checkpoints) -> None:
        self.checkpoints = checkpoints
        self.console = Console(stderr=True, quiet=rank() > 0)
        self.bar: Progress | None = None

    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, outputs: Any, batch: Any,
        batch_idx: int,
    ) -> None:  # fmt: skip
        """Move the bar."""
        bar = self.bar = self.bar or self._open(trainer)
        done: dict[str, Any] = {"completed": batch_idx + 1}
        if outputs:  # nothing came of a step that was skipped
            done["loss"] = float(outputs["loss"])
        bar.update(bar.task_ids[0], **done)

    def on_train_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Close the bar, write the line."""
        self._close()
        row = self.checkpoints.history[-1]
        self.console.print(
            f"epoch {row['epoch']}/{trainer.max_epochs}  train loss {row['train_loss']:.4f}  "
            f"dev loss {row['val_loss']:.4f}  dev CER {row['val_cer']:.4f}  "
            f"step {trainer.global_step}  {row['seconds']:.0f} s",
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

    def _open(self, trainer: L.Trainer) -> Progress:
        bar = Progress(
            TextColumn("epoch {task.description}"), BarColumn(), MofNCompleteColumn(),
            TextColumn("loss {task.fields[loss]:.3f}"), TimeRemainingColumn(),
            console=self.console, transient=True, disable=not self.console.is_terminal,
        )  # fmt: skip
        bar.add_task(
            f"{trainer.current_epoch + 1}/{trainer.max_epochs}",
            total=int(trainer.num_training_batches),
            loss=nan,
        )
        bar.start()
        return bar

    def _close(self) -> None:
        if self.bar:
            self.bar.stop()
            self.bar = None
