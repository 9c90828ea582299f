"""Compare Transformer, LRT and Linformer on sequences of pixels (Cahyawijaya 2021, Table 3.1).

python -m experiments.pixels.run                   # scikit-learn's digits, minutes on a CPU
python -m experiments.pixels.run --mnist FOLDER    # MNIST and the thesis's sizes: for a GPU

One rule for all models: the learning rate and the number of epochs are those of the highest
accuracy on a fifth of the training pictures, held out, with one seed. Then the model trains on all
training pictures.
"""

import argparse
import time
from dataclasses import dataclass
from pathlib import Path

import torch
from sklearn.model_selection import train_test_split

from asr.model.size import count_parameters
from asr.model.transformer import ModelConfig
from experiments import runner
from experiments.classifier import ClassifierConfig, SequenceClassifier
from experiments.pixels import images
from experiments.runner import Examples, Results, Row, predict, start, table, train, whole_number

# MNIST's are the thesis's (section 3.2); the others a quarter of them, with half the heads.
SIZES: dict[str, Row] = {
    "mnist": {"d_model": 256, "d_inner": 1024, "n_heads": 8, "rank": 64, "batch": 64},
    "digits": {"d_model": 64, "d_inner": 256, "n_heads": 4, "rank": 16, "batch": 32},
}
RATES = {"mnist": [1.5e-4, 3e-4, 6e-4], "digits": [1e-3, 2e-3, 4e-3]}
THESIS = {
    "transformer": "11.2 M, 98.72, 96.95",
    "lrt": "9.3 M, 99.04, 97.31",
    "linformer": "11.6 M, 98.89, 96.82",
}


def classifier_config(kind: str, length: int, sizes: Row) -> ClassifierConfig:
    """Return the shape of four layers; `rank` is that of LRT's projections or of Linformer."""
    low_rank = {"kind": "low_rank", "rank": sizes["rank"]}
    linformer = {"kind": "linformer", "rank": sizes["rank"], "length": length + 1}
    attention = linformer if kind == "linformer" else {"kind": "full"}
    values = {key: sizes[key] for key in ("d_model", "d_inner", "n_heads")}
    values |= {"norm": "pre", "dropout": 0, "encoder": {"n_layers": 4, "attention": attention}}
    values["projection"] = low_rank if kind == "lrt" else {"kind": "dense"}
    return ClassifierConfig(n_classes=10, model=ModelConfig.model_validate(values))


def accuracy(model: SequenceClassifier, examples: Examples) -> float:
    """Return the share of correct classes in percent."""
    classes = predict(model, examples, 256).argmax(-1)
    return 100 * int((classes == torch.tensor([y for _, y in examples])).sum()) / len(examples)


@dataclass(frozen=True)
class Study:
    """Pictures to train on and to test with, and the sizes of the models."""

    training: Examples
    test: Examples
    sizes: Row

    def fit(
        self, model: str, seed: int, lr: float, epochs: int, examples: Examples
    ) -> SequenceClassifier:
        """Return a model trained on some pictures."""
        torch.manual_seed(seed)
        config = classifier_config(model, len(examples[0][0]), self.sizes)
        network = SequenceClassifier(config)
        list(train(network, examples, epochs, self.sizes["batch"], lr))
        return network

    def hold_out(self, model: str, lr: float, epochs: int) -> Row:
        """Train on four fifths of the pictures; return the accuracy on the others."""
        labels = [label for _, label in self.training]
        some, held_out = train_test_split(
            self.training, test_size=0.2, stratify=labels, random_state=0
        )
        return {"held out": accuracy(self.fit(model, 0, lr, epochs, some), held_out)}

    def measure(self, model: str, seed: int, lr: float, epochs: int) -> Row:
        """Train on all pictures; return size, accuracies, processor time and memory."""
        begin = time.process_time()
        network = self.fit(model, seed, lr, epochs, self.training)
        seconds = time.process_time() - begin
        batch = next(iter(runner.batches(self.training, self.sizes["batch"])))
        return {
            "parameters": count_parameters(network), "rate": 1000 * lr,
            "seconds": seconds / epochs,
            "kept": runner.kept_mib(lambda: runner.class_loss(network.cpu(), *batch)),
            "train": accuracy(network, self.training), "test": accuracy(network, self.test),
        }  # fmt: skip


def found_settings(tried: list[Row], model: str) -> Row:
    """Return the rate and epochs of the highest held-out accuracy; of equals the fewest epochs."""
    rows = [row for row in tried if row["model"] == model]
    best = max(rows, key=lambda row: (row["held out"], -row["epochs"], -row["lr"]))
    return {key: best[key] for key in ("lr", "epochs")}


def main() -> None:
    """Run what no earlier run has finished, and print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--mnist", type=Path, help="the folder of MNIST's idx files")
    parser.add_argument("--out", type=Path, default=Path("exp/pixels"))
    parser.add_argument("--epochs", type=whole_number(1), nargs="+", default=[12, 36])
    parser.add_argument("--seeds", type=whole_number(1), default=5)
    options = parser.parse_args()
    data = "mnist" if options.mnist else "digits"
    splits = images.load_mnist(options.mnist) if options.mnist else images.load_digits()
    study = Study(*splits, SIZES[data])
    results = Results(options.out / "results.json", {"data": data, **study.sizes})
    trials: list[Row] = [
        {"model": kind, "lr": lr, "epochs": epochs}
        for kind in THESIS for lr in RATES[data] for epochs in options.epochs
    ]  # fmt: skip
    tried = [r for r in results.complete(trials, study.hold_out) if "held out" in r]
    cases = [
        {"model": kind, "seed": 1 + i, **found_settings(tried, kind)}
        for kind in THESIS for i in range(options.seeds)
    ]  # fmt: skip
    rows = results.complete(cases, study.measure)
    columns = {
        "learning rate (1e-3)": "rate", "epochs": "epochs", "parameters": "parameters",
        "core s an epoch": "seconds", "MiB kept by a step": "kept",
        "train accuracy (%)": "train", "test accuracy (%)": "test",
    }  # fmt: skip
    print(table(rows, columns, THESIS, "thesis, on MNIST: parameters, train, test"))


if __name__ == "__main__":
    start("pixels", main)
