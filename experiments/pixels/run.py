"""Table 3.1 of the thesis: Transformer, LRT and Linformer read pictures as rows of pixels.

python recipes/pixels/run.py                   # scikit-learn's digits, minutes on a CPU
python recipes/pixels/run.py --mnist FOLDER    # MNIST and the thesis's sizes: for a GPU
"""

import argparse
import time
from pathlib import Path
from statistics import mean, stdev

import lightning as L
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

from asr.errors import ConfigError
from asr.model.transformer import ModelConfig
from experiments import runner as experiment
from experiments.classifier import ClassifierConfig
from experiments.pixels import images
from experiments.runner import err

# d_model, inner size, heads and rank are the thesis's (3.2), or a quarter of them, half the heads.
SIZES = {
    "mnist": {"d_model": 256, "d_inner": 1024, "n_heads": 8, "rank": 64, "batch": 64, "lr": 3e-4},
    "digits": {"d_model": 64, "d_inner": 256, "n_heads": 4, "rank": 16, "batch": 16, "lr": 2e-3},
}
THESIS = {
    "transformer": ("11.2 M", "98.72", "96.95"),
    "lrt": ("9.3 M", "99.04", "97.31"),
    "linformer": ("11.6 M", "98.89", "96.82"),
}


def classifier(kind: str, length: int, sizes: dict) -> ClassifierConfig:
    """Four layers; LRT factorises the projections, Linformer the attention, at the same rank."""
    projection, attention = {"kind": "dense"}, {"kind": "full"}
    if kind == "lrt":
        projection = {"kind": "low_rank", "rank": sizes["rank"]}
    if kind == "linformer":
        attention = {"kind": "linformer", "rank": sizes["rank"], "length": length + 1}
    shape = {key: sizes[key] for key in ("d_model", "d_inner", "n_heads")}
    encoder = {"n_layers": 4, "attention": attention}
    values = {
        **shape, "norm": "pre", "dropout": 0, "projection": projection, "encoder": encoder
    }  # fmt: skip
    return ClassifierConfig(n_classes=10, model=ModelConfig.model_validate(values))


class Task(experiment.Task):
    """Cross-entropy of the class."""

    def __init__(self, config: ClassifierConfig, lr: float) -> None:
        super().__init__()
        self.model, self.lr = config.build(), lr

    def training_step(self, batch: list[Tensor]) -> Tensor:
        """The loss of a batch."""
        pixels_BS, labels_B = batch
        mask_BS = torch.ones_like(pixels_BS, dtype=torch.bool)
        return cross_entropy(self.model(pixels_BS, mask_BS), labels_B)


@torch.inference_mode()
def accuracy(task: Task, data: TensorDataset, device: torch.device) -> float:
    """The share of pictures whose class is found, in percent."""
    task.to(device).eval()
    right = 0
    for pixels_BS, labels_B in DataLoader(data, 256):
        mask_BS = torch.ones_like(pixels_BS, dtype=torch.bool, device=device)
        right += int((task.model(pixels_BS.to(device), mask_BS).argmax(-1).cpu() == labels_B).sum())
    return 100 * right / len(data)


def run(kind: str, seed: int, splits: images.Splits, sizes: dict, epochs: int) -> dict:
    """Train one model and tell its line of the table."""
    L.seed_everything(seed, verbose=False)
    began, cpu = time.perf_counter(), time.process_time()
    train, test = splits
    task = Task(classifier(kind, train.tensors[0].shape[1], sizes), sizes["lr"])
    batches = DataLoader(train, sizes["batch"], shuffle=True)
    device = experiment.fit(f"{kind}, seed {seed}", task, epochs, batches)
    return {
        "model": kind, "seed": seed,
        "parameters": sum(p.numel() for p in task.parameters()),
        "train": accuracy(task, train, device), "test": accuracy(task, test, device),
        "seconds": time.perf_counter() - began, "cpu_seconds": time.process_time() - cpu,
    }  # fmt: skip


def table(rows: list[dict]) -> str:
    """Means over the seeds, with the deviation between them, in Markdown."""
    lines = [
        "| model | parameters | train accuracy (%) | test accuracy (%) | core s a run | "
        "thesis, on MNIST: parameters, train, test |",
        "| --- | ---: | ---: | ---: | ---: | ---: |",
    ]
    for kind, thesis in THESIS.items():
        mine = [row for row in rows if row["model"] == kind]
        cells = [f"{mine[0]['parameters']:,}"]
        for key in ("train", "test"):
            values = [row[key] for row in mine]
            spread = f" ± {stdev(values):.2f}" if len(values) > 1 else ""
            cells.append(f"{mean(values):.2f}{spread}")
        cells.append(f"{mean(row['cpu_seconds'] for row in mine):.0f}")
        lines.append(f"| {kind} | {' | '.join(cells)} | {', '.join(thesis)} |")
    return "\n".join(lines)


def main() -> None:
    """All models and seeds; those that `results.json` has already are not run again."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--mnist", type=Path, help="the folder of MNIST's idx files")
    parser.add_argument("--out", type=Path, default=Path("exp/pixels"))
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--seeds", type=int, default=3)
    options = parser.parse_args()
    if min(options.epochs, options.seeds) < 1:
        raise ConfigError("--epochs and --seeds are 1 at least")
    data = "mnist" if options.mnist else "digits"
    splits = images.mnist(options.mnist) if options.mnist else images.embedded()
    settings = {"data": data, "epochs": options.epochs, **SIZES[data]}
    results = experiment.Results(options.out / "results.json", settings)
    for seed in range(1, options.seeds + 1):
        for kind in THESIS:
            if {"model": kind, "seed": seed} not in results:
                row = run(kind, seed, splits, SIZES[data], options.epochs)
                results.add(row)
                err.print(f"{kind}, seed {seed}: test {row['test']:.2f} %, {row['seconds']:.0f} s")
    print(table([row for row in results.rows if row["seed"] <= options.seeds]))


if __name__ == "__main__":
    experiment.start("pixels", main)
