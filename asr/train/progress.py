"""Progress of a run: a bar or a line every half minute within an epoch, one line after it."""

import time
from collections.abc import Callable
from datetime import timedelta
from math import nan
from typing import Any

import lightning as L
from lightning.pytorch.callbacks import Callback
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from asr.train.checkpoints import Checkpoints
from asr.train.distributed import rank

_INTERVAL = 30.0  # seconds between lines without a terminal


class TrainingProgress(Callback):
    """Losses, error rates and time after each epoch; within it a bar on a terminal, else lines.

    `clock` returns seconds.
    """

    def __init__(
        self, checkpoints: Checkpoints, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.checkpoints, self.clock = checkpoints, clock
        self.console = Console(stderr=True, quiet=rank() > 0)
        self.bar: Progress | None = None
        self.start, self.first_step, self.last_line = 0.0, 0, 0.0
        self.loss: Any = nan

    def on_train_start(self, trainer: L.Trainer, pl_module: Any) -> None:
        """Start the clock of this session."""
        self.start = self.last_line = self.clock()
        self.first_step = trainer.global_step

    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Advance the bar, or print a line."""
        self.loss = outputs["loss"] if outputs else self.loss  # a skipped step has no output
        if self.console.is_terminal:
            bar = self.bar = self.bar or self._open(trainer)
            left = self._left(trainer, pl_module.total_steps, self.clock())
            loss = float(self.loss)
            bar.update(bar.task_ids[0], completed=batch_idx + 1, loss=loss, left=left)
        elif (now := self.clock()) - self.last_line >= _INTERVAL:
            self.last_line = now
            self._print_line(trainer, pl_module.total_steps)

    def _print_line(self, trainer: L.Trainer, total_steps: int) -> None:
        step, rate = trainer.global_step, trainer.optimizers[0].param_groups[0]["lr"]
        left = self._left(trainer, total_steps, self.last_line)
        self.console.print(
            f"epoch {trainer.current_epoch + 1}/{trainer.max_epochs}  step {step}/{total_steps}  "
            f"loss {float(self.loss):.4f}  learning rate {rate:.2e}  {left} left",
            highlight=False, soft_wrap=True,
        )  # fmt: skip

    def _left(self, trainer: L.Trainer, total_steps: int, now: float) -> timedelta:
        """Return the time left of the whole run, by the mean time of a step of this session."""
        per_step = (now - self.start) / max(1, trainer.global_step - self.first_step)
        return timedelta(seconds=round(per_step * max(0, total_steps - trainer.global_step)))

    def on_train_epoch_end(self, trainer: L.Trainer, pl_module: Any) -> None:
        """Close the bar, and print the epoch's line."""
        self.on_exception()
        row = self.checkpoints.history[-1]
        names = {"CER": "val_cer_percent", "WER": "val_wer_percent"}
        rates = "".join(f"dev {k} {row[v]:.2f} %  " for k, v in names.items() if v in row)
        self.console.print(
            f"epoch {row['epoch']}/{trainer.max_epochs}  train loss {row['train_loss']:.4f}  "
            f"dev loss {row['val_loss']:.4f}  {rates}step {trainer.global_step}  "
            f"{row['seconds']:.0f} s",
            highlight=False, soft_wrap=True,
        )  # fmt: skip

    def _open(self, trainer: L.Trainer) -> Progress:
        bar = Progress(
            TextColumn("epoch {task.description}"), BarColumn(), MofNCompleteColumn(),
            TextColumn("loss {task.fields[loss]:.3f}"), TextColumn("{task.fields[left]} left"),
            console=self.console, transient=True,
        )  # fmt: skip
        epoch = f"{trainer.current_epoch + 1}/{trainer.max_epochs}"
        bar.add_task(epoch, total=int(trainer.num_training_batches), loss=nan, left="?")
        bar.start()
        return bar

    def on_exception(self, *args: Any, **kwargs: Any) -> None:
        """Restore the terminal."""
        if self.bar:
            self.bar.stop()
            self.bar = None
