"""Masked pre-training, and classification, of the Linformer (thesis 5.3), by Lightning."""

from copy import deepcopy
from statistics import mean
from typing import Literal

import lightning as L
import torch
from sklearn.metrics import roc_auc_score
from torch import Tensor
from torch.nn.functional import cross_entropy
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader

from experiments import runner as experiment
from experiments.classifier import SequenceClassifier, sample_mask
from experiments.genome.tokens import PAD

_SHARE_HIDDEN = 0.15
Rows = list[tuple[Tensor, int]]  # tokens and label of each subject


class Task(experiment.Task):
    """The masked tokens' cross-entropy, or the class's.

    Where there are rows to validate on, `best` is the model of the epoch with the highest AUC
    there, and training ends after `patience` epochs without a higher one.
    """

    def __init__(
        self, model: SequenceClassifier, loss: Literal["masked", "class"], lr: float, patience: int
    ) -> None:
        super().__init__()
        self.model, self.loss, self.lr = model, loss, lr
        self.best, self.highest, self.patience, self.waited = model, -1.0, patience, 0
        self.found: list[tuple[Tensor, Tensor]] = []
        self.losses: list[float] = []

    def training_step(self, batch: tuple[Tensor, Tensor]) -> Tensor:
        """The loss of a batch."""
        tokens_BS, labels_B = batch
        mask_BS = tokens_BS != PAD
        if self.loss == "class":
            return cross_entropy(self.model(tokens_BS, mask_BS), labels_B)
        hidden_BS = sample_mask(mask_BS, _SHARE_HIDDEN)
        loss = cross_entropy(
            self.model.reconstruct(tokens_BS, mask_BS, hidden_BS), tokens_BS[hidden_BS]
        )
        self.losses.append(loss.item())
        return loss

    def on_train_end(self) -> None:
        """How much of the sequences it knows."""
        if self.losses:
            last = self.losses[-100:]
            experiment.err.print(f"the last hidden tokens cost it {mean(last):.2f} nats each")

    def validation_step(self, batch: tuple[Tensor, Tensor]) -> None:
        """How likely the label 1 is, and the label."""
        tokens_BS, labels_B = batch
        logits_BC = self.model(tokens_BS, tokens_BS != PAD)
        self.found.append((logits_BC.softmax(-1)[:, 1].cpu(), labels_B.cpu()))

    def on_validation_epoch_end(self) -> None:
        """Keep the best, give up where nothing gets better."""
        found, labels = map(torch.cat, zip(*self.found, strict=True))
        self.found, auc = [], float(roc_auc_score(labels, found))
        if auc > self.highest:
            self.highest, self.waited, self.best = auc, 0, deepcopy(self.model)
        else:
            self.waited += 1
            self.trainer.should_stop = self.waited >= self.patience


def batches(rows: Rows, size: int, shuffle: bool = False) -> DataLoader:
    """Padded tokens (B, S) and labels (B,)."""

    def collate(part: Rows) -> tuple[Tensor, Tensor]:
        tokens, labels = zip(*part, strict=True)
        return pad_sequence(tokens, batch_first=True, padding_value=PAD), torch.tensor(labels)

    return DataLoader(rows, size, shuffle=shuffle, collate_fn=collate)  # type: ignore[arg-type]


def fit(
    what: str, model: SequenceClassifier, train: Rows, validation: Rows | None, *, epochs: int,
    seed: int, lr: float, batch: int, patience: int = 5,
) -> SequenceClassifier:  # fmt: skip
    """Pre-train on hidden tokens, or with `validation` on the classes; returns the model to use."""
    L.seed_everything(seed, verbose=False)  # the same order and dropout, whatever ran before
    task = Task(model, "class" if validation else "masked", lr, patience)
    held = batches(validation, batch) if validation else None
    experiment.fit(what, task, epochs, batches(train, batch, shuffle=True), held)
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
