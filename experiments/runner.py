"""What the scripts over the classifier share: a trainer, results that last, a last word."""

import json
import logging
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryFile

import lightning as L
import torch
from rich.console import Console
from rich.progress import Progress
from torch.utils.data import DataLoader

from asr.errors import AsrError, ConfigError
from asr.runtime.files import write_atomically

err = Console(stderr=True, soft_wrap=True)


class Task(L.LightningModule):
    """AdamW at a rate that rises for a tenth of the steps, then falls to 0."""

    lr: float

    def configure_optimizers(self) -> tuple[list, list]:
        """The rate moves with every step."""
        adam = torch.optim.AdamW(self.parameters(), self.lr)
        steps = int(self.trainer.estimated_stepping_batches)
        rises = 1 + steps // 10
        schedule = torch.optim.lr_scheduler.LambdaLR(
            adam, lambda step: min((step + 1) / rises, 1 - step / (steps + 1))
        )
        return [adam], [{"scheduler": schedule, "interval": "step"}]


class _Bar(L.Callback):
    """Moves a bar by a step."""

    def __init__(self, progress: Progress, what: str) -> None:
        self.progress, self.id = progress, progress.add_task(what, total=None)

    def on_train_start(self, trainer: L.Trainer, *_: object) -> None:
        """The number of steps is known."""
        self.progress.update(self.id, total=int(trainer.estimated_stepping_batches))

    def on_train_batch_end(self, *_: object) -> None:
        """A step is done."""
        self.progress.advance(self.id)


def fit(
    what: str, task: Task, epochs: int, train: DataLoader, validation: DataLoader | None = None
) -> torch.device:
    """Train under a bar named `what`; returns where."""
    with Progress(console=err, transient=True, disable=not err.is_terminal) as progress:
        trainer = L.Trainer(
            max_epochs=epochs, callbacks=[_Bar(progress, what)], logger=False, devices=1,
            enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
            gradient_clip_val=1.0, num_sanity_val_steps=0,
        )  # fmt: skip
        try:
            trainer.fit(task, train, validation)
        except SystemExit:  # what Lightning makes of Ctrl-C
            raise KeyboardInterrupt from None
    return trainer.strategy.root_device


class Results:
    """results.json: a run's settings, and `rows`, which are not measured twice.

    Raises ConfigError where the file is of other settings or damaged, or its folder not writable.
    """

    def __init__(self, path: Path, settings: dict) -> None:
        self.path, self.settings, self.rows = path, settings, list[dict]()
        try:  # now, rather than after the first training
            path.parent.mkdir(parents=True, exist_ok=True)
            TemporaryFile(dir=path.parent).close()
        except OSError as error:
            raise ConfigError(
                f"--out {path.parent}: cannot be written ({error.strerror}): give another folder"
            ) from error
        if not path.exists():
            return
        try:
            found = json.loads(path.read_text())
            its, self.rows = found["settings"], [dict(row) for row in found["rows"]]
        except (OSError, ValueError, TypeError, KeyError) as error:
            raise ConfigError(
                f"{path}: no results that can be read: give another --out, or move it away"
            ) from error
        if its != settings:
            raise ConfigError(f"{path}: is of other settings: give another --out, or move it away")

    def __contains__(self, names: dict) -> bool:
        """Is there a row that has all of these?"""
        return any(names.items() <= row.items() for row in self.rows)

    def add(self, row: dict) -> None:
        """What is killed now goes on behind this row."""
        self.rows.append(row)
        text = json.dumps({"settings": self.settings, "rows": self.rows})
        write_atomically(self.path, lambda temporary: temporary.write_text(text))


def start(name: str, main: Callable[[], None]) -> None:
    """Run a script's `main`; what is wrong is one sentence."""
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", module="lightning|torch")
    try:
        main()
    except AsrError as error:
        err.print(f"{name}: {error}", markup=False, highlight=False)
        sys.exit(error.exit_code)
    except OSError as error:
        what = f"{error.filename or 'disk'}: {error.strerror or error}"
        err.print(
            f"{name}: {what}: mend that; the same command goes on", markup=False, highlight=False
        )
        sys.exit(1)
    except KeyboardInterrupt:
        err.print(f"{name}: interrupted; the same command goes on")
        sys.exit(130)
