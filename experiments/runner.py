"""What the experiments share: training, prediction, stored results and error messages."""

import sys
from argparse import ArgumentTypeError
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from statistics import mean, stdev
from tempfile import TemporaryFile
from typing import Any

import torch
from pydantic import BaseModel, ValidationError
from rich.console import Console
from rich.progress import track
from tabulate import tabulate
from torch import Tensor, UntypedStorage
from torch.nn.functional import cross_entropy
from torch.nn.utils.clip_grad import clip_grad_norm_
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader

from asr.errors import AsrError, ConfigError
from asr.model.attention import end_step, follow_step, stepped_kernels
from asr.model.frontend import padding_mask
from asr.runtime.devices import choose_device
from asr.runtime.files import write_text
from experiments.classifier import SequenceClassifier

Examples = Sequence[tuple[Tensor, int]]  # sequences (S,) and their classes
Batch = tuple[Tensor, Tensor, Tensor]
Loss = Callable[[SequenceClassifier, Tensor, Tensor, Tensor], Tensor]
Row = dict[str, Any]

err = Console(stderr=True, soft_wrap=True)


def batches(examples: Examples, size: int, shuffle: bool = False) -> DataLoader[Batch]:
    """Yield sequences padded with 0 (B, S), their padding mask (B, S) and their classes (B,)."""

    def collate(part: Examples) -> Batch:
        x_BS = pad_sequence([sequence for sequence, _ in part], batch_first=True)
        mask_BS = padding_mask(torch.tensor([len(each) for each, _ in part]), x_BS.shape[1])
        return x_BS, mask_BS, torch.tensor([label for _, label in part])

    return DataLoader(examples, size, shuffle=shuffle, collate_fn=collate)  # type: ignore[arg-type]


def class_loss(model: SequenceClassifier, x_BS: Tensor, mask_BS: Tensor, y_B: Tensor) -> Tensor:
    """Return the cross-entropy of the classes."""
    return cross_entropy(model(x_BS, mask_BS), y_B)


def train(
    model: SequenceClassifier, examples: Examples, epochs: int, batch_size: int, lr: float,
    loss_of: Loss = class_loss,
) -> Iterator[float]:  # fmt: skip
    """Train with AdamW (Loshchilov and Hutter 2019); yield the mean loss of each epoch.

    The learning rate rises linearly to `lr` in a tenth of the steps, then falls linearly to 0.
    """
    device, loader = choose_device("auto"), batches(examples, batch_size, shuffle=True)
    optimizer = torch.optim.AdamW(model.to(device).parameters(), lr)
    n_steps = epochs * len(loader)
    n_warmup = 1 + n_steps // 10
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min((step + 1) / n_warmup, 1 - step / (n_steps + 1))
    )
    kernels, n_taken = stepped_kernels(model), 0
    bar = track(range(epochs), console=err, transient=True, disable=not err.is_terminal)
    for _ in bar:
        model.train()
        losses = []
        for batch in loader:
            follow_step(kernels, n_taken)
            loss = loss_of(model, *(tensor.to(device) for tensor in batch))
            optimizer.zero_grad()
            loss.backward()
            clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            end_step(kernels, lambda sums: sums)
            schedule.step()
            n_taken += 1
            losses.append(loss.item())
        yield mean(losses)


def kept_mib(compute: Callable[[], Tensor]) -> float:
    """Return the MiB of tensors, weights among them, that a computation keeps for its gradients."""
    kept: dict[int, UntypedStorage] = {}

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        kept[storage.data_ptr()] = storage  # held, so that no other tensor gets its place
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        compute()
    return sum(storage.nbytes() for storage in kept.values()) / 2**20


@torch.inference_mode()
def predict(model: SequenceClassifier, examples: Examples, batch_size: int) -> Tensor:
    """Return the probabilities (examples, C) of the classes, on the CPU."""
    device = choose_device("auto")
    model.to(device).eval()
    loader = batches(examples, batch_size)
    logits = [model(x_BS.to(device), mask_BS.to(device)).cpu() for x_BS, mask_BS, _ in loader]
    return torch.cat(logits).softmax(-1)


class _Stored(BaseModel):
    settings: Row
    rows: list[Row]


class Results:
    """results.json: a run's settings and the rows that it has measured.

    Raises ConfigError if the file has other settings or is damaged, or its folder not writable.
    """

    def __init__(self, path: Path, settings: Row) -> None:
        self.path, self.stored = path, _Stored(settings=settings, rows=[])
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            TemporaryFile(dir=path.parent).close()  # fails now, not after the first training
            if path.exists():
                self.stored = _Stored.model_validate_json(path.read_bytes())
        except (OSError, ValidationError) as error:
            why = error.strerror if isinstance(error, OSError) else "damaged"
            raise ConfigError(f"{path}: cannot be used ({why}): give another --out") from error
        if self.stored.settings != settings:
            raise ConfigError(f"{path}: has other settings: give another --out")

    def complete(self, cases: list[Row], measure: Callable[..., Row]) -> list[Row]:
        """Measure each case without a row as `measure(**case)`; return the rows of all cases."""
        for case in cases:
            if not any(case.items() <= row.items() for row in self.stored.rows):
                row = {**case, **measure(**case)}
                self.stored.rows.append(row)
                write_text(self.path, self.stored.model_dump_json())
                err.print(", ".join(f"{key} {value}" for key, value in row.items()))
        return [row for row in self.stored.rows if any(c.items() <= row.items() for c in cases)]


def table(rows: list[Row], columns: dict[str, str], thesis: dict[str, str], head: str) -> str:
    """Return each model's mean and sample standard deviation of `columns` in Markdown.

    `columns` maps headings to the rows' keys; `head` heads the last column, `thesis`.
    """
    lines = []
    for model, printed in thesis.items():
        values = [[r[key] for r in rows if r["model"] == model] for key in columns.values()]
        lines.append([model, *map(mean_and_deviation, values), printed])
    return tabulate(lines, ["model", *columns, head], tablefmt="github", disable_numparse=True)


def mean_and_deviation(values: list[float]) -> str:
    """Return the mean and the sample standard deviation as text for a table."""
    deviation = stdev(values) if len(values) > 1 else 0
    digits = 0 if isinstance(values[0], int) else 2
    return f"{mean(values):,.{digits}f}" + (f" ± {deviation:.2f}" if deviation else "")


def whole_number(minimum: int) -> Callable[[str], int]:
    """Return the parser of an option's number, up to the limit of sentencepiece and NumPy."""

    def number(text: str) -> int:
        if not minimum <= int(text) < 1 << 31:
            raise ArgumentTypeError(f"{text}: give a number from {minimum} to {(1 << 31) - 1}")
        return int(text)

    return number


def start(name: str, main: Callable[[], None]) -> None:
    """Run a script's `main`; print an error as one sentence and exit."""
    try:
        return main()
    except AsrError as error:
        message, code = str(error), error.exit_code
    except OSError as error:
        message, code = f"{error.filename or 'disk'}: {error.strerror or error}", 1
    except KeyboardInterrupt:
        message, code = "interrupted; the same command continues", 130
    err.print(f"{name}: {message}", markup=False, highlight=False)
    sys.exit(code)
