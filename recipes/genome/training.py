"""Masked pre-training, and classification, of the Linformer (thesis 5.3), by Lightning."""

from copy import deepcopy
from typing import Literal

import lightning as L
import torch
from rich.console import Console
from rich.progress import Progress
from tokens import PAD
from torch import Tensor
from torch.nn.functional import cross_entropy
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader

from asr.model.classifier import SequenceClassifier, hide

_SHARE_HIDDEN = 0.15
Rows = list[tuple[Tensor, int]]  # tokens and label of each subject
err = Console(stderr=True, soft_wrap=True)


class Task(L.LightningModule):
    """The masked tokens' cross-entropy, or the class's; AdamW, a rate that rises, then falls.

    Where there are rows to validate on, `best` is the weights of the epoch with the lowest loss
    there, and training ends after `patience` epochs without a lower one.
    """

    def __init__(
        self, model: SequenceClassifier, loss: Literal["masked", "class"], lr: float, patience: int
    ) -> None:
        super().__init__()
        self.model, self.loss, self.lr = model, loss, lr
        self.best, self.lowest, self.patience, self.waited = model, float("inf"), patience, 0
        self.losses: list[float] = []

    def training_step(self, batch: tuple[Tensor, Tensor]) -> Tensor:
        """The loss of a batch."""
        tokens_BS, labels_B = batch
        keep_BS = tokens_BS != PAD
        if self.loss == "class":
            return cross_entropy(self.model(tokens_BS, keep_BS), labels_B)
        hidden_BS = hide(keep_BS, _SHARE_HIDDEN)
        return cross_entropy(
            self.model.reconstruct(tokens_BS, keep_BS, hidden_BS), tokens_BS[hidden_BS]
        )

    def validation_step(self, batch: tuple[Tensor, Tensor]) -> None:
        """The class's loss."""
        self.losses.append(float(self.training_step(batch)) * len(batch[1]))

    def on_validation_epoch_end(self) -> None:
        """Keep the best, give up where nothing gets better."""
        loss, self.losses = sum(self.losses), []
        if loss < self.lowest:
            self.lowest, self.waited, self.best = loss, 0, deepcopy(self.model)
        else:
            self.waited += 1
            self.trainer.should_stop = self.waited >= self.patience

    def configure_optimizers(self) -> tuple[list, list]:
        """The rate moves with every step."""
        adam = torch.optim.AdamW(self.model.parameters(), self.lr)
        steps = int(self.trainer.estimated_stepping_batches)
        rises = 1 + steps // 5
        schedule = torch.optim.lr_scheduler.LambdaLR(
            adam, lambda step: min((step + 1) / rises, 1 - step / (steps + 1))
        )
        return [adam], [{"scheduler": schedule, "interval": "step"}]


class Bar(L.Callback):
    """Moves a bar by a step."""

    def __init__(self, progress: Progress, what: str) -> None:
        self.progress, self.id = progress, progress.add_task(what, total=None)

    def on_train_start(self, trainer: L.Trainer, *_: object) -> None:
        """The number of steps is known."""
        self.progress.update(self.id, total=int(trainer.estimated_stepping_batches))

    def on_train_batch_end(self, *_: object) -> None:
        """A step is done."""
        self.progress.advance(self.id)


def batches(rows: Rows, size: int, shuffle: bool = False) -> DataLoader:
    """Padded tokens (B, S) and labels (B,)."""

    def collate(part: Rows) -> tuple[Tensor, Tensor]:
        tokens, labels = zip(*part, strict=True)
        return pad_sequence(tokens, batch_first=True, padding_value=PAD), torch.tensor(labels)

    return DataLoader(rows, size, shuffle=shuffle, collate_fn=collate)  # type: ignore[arg-type]


def fit(
    what: str, model: SequenceClassifier, train: Rows, validation: Rows | None, *, epochs: int,
    seed: int, lr: float = 3e-3, batch: int = 8, patience: int = 5,
) -> SequenceClassifier:  # fmt: skip
    """Pre-train on hidden tokens, or with `validation` on the classes; returns the model to use."""
    L.seed_everything(seed, verbose=False)  # the same order and dropout, whatever ran before
    task = Task(model, "class" if validation else "masked", lr, patience)
    with Progress(console=err, transient=True, disable=not err.is_terminal) as progress:
        trainer = L.Trainer(
            max_epochs=epochs, callbacks=[Bar(progress, what)], logger=False, devices=1,
            enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
            gradient_clip_val=1.0, num_sanity_val_steps=0,
        )  # fmt: skip
        held = batches(validation, batch) if validation else None
        try:
            trainer.fit(task, batches(train, batch, shuffle=True), held)
        except SystemExit:  # what Lightning makes of Ctrl-C
            raise KeyboardInterrupt from None
    return task.best.cpu()


@torch.inference_mode()
def probabilities(model: SequenceClassifier, rows: Rows) -> Tensor:
    """(P,): how likely each subject has the label 1."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model.to(device).eval()
    found = []
    for tokens_BS, _ in batches(rows, 8):
        logits_BC = model(tokens_BS.to(device), (tokens_BS != PAD).to(device))
        found.append(logits_BC.softmax(-1)[:, 1].cpu())
    return torch.cat(found)
