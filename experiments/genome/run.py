"""Chapter 5 of the thesis: a disease's risk from long diplotypes, by a pre-trained Linformer.

    python recipes/genome/run.py                                  # a simulated cohort, end to end
    python recipes/genome/run.py --vcf COHORT.vcf.gz --reference REGION.fa \\
        --phenotypes LABELS.tsv --panel PANEL.vcf.gz --baseline 45411941,45412079
    python recipes/genome/run.py --fasta FOLDER --phenotypes LABELS.tsv --baseline 1200,1338
"""

import argparse
import os
import time
from hashlib import sha256
from pathlib import Path
from statistics import mean, stdev

import lightning as L
import numpy as np
import torch
from safetensors.torch import save
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import f1_score, roc_auc_score
from sklearn.model_selection import StratifiedKFold, train_test_split
from torch import Tensor
from torch.distributions import Categorical
from torch.nn.functional import one_hot

from asr.bundle import load_weights
from asr.errors import ConfigError, DataError
from asr.runtime.files import write_atomically
from experiments import runner as experiment
from experiments.classifier import ClassifierConfig, SequenceClassifier
from experiments.genome import tokens
from experiments.genome.diplotype import diplotype
from experiments.genome.simulation import simulate
from experiments.genome.training import Rows, fit, probabilities
from experiments.genome.vcf import (
    Cohort,
    read_haplotypes,
    read_phenotypes,
    read_reference,
    read_vcf,
)
from experiments.runner import err

BASELINE, FRESH, PRETRAINED = "logistic baseline", "Linformer, not pre-trained", "Linformer"
THESIS = {BASELINE: (58.88, 49.24), FRESH: (56.49, 56.83), PRETRAINED: (64.35, 61.57)}
_SPLITS, _RANK = 5, 32
_MOST = 2**31 - 1  # what sentencepiece and numpy take


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--vcf", type=Path, help="the cohort's genotypes, of one region")
    parser.add_argument("--reference", type=Path, help="FASTA of the region, with --vcf")
    parser.add_argument("--panel", type=Path, help="VCF to pre-train on; default: the cohort's own")
    parser.add_argument("--fasta", type=Path, help="in place of --vcf: two haplotypes a file")
    parser.add_argument("--phenotypes", type=Path, help="lines of a subject, a tab, and 0 or 1")
    parser.add_argument("--baseline", help="places of the logistic baseline, with commas")
    parser.add_argument("--out", type=Path, default=Path("exp/genome"))
    parser.add_argument("--simulated-subjects", type=int, default=626)
    parser.add_argument("--simulated-length", type=int, default=21_900)
    parser.add_argument("--tokens", type=int, default=4096, help="the longest input, with [CLS]")
    parser.add_argument("--vocab", type=int, default=2000)
    parser.add_argument("--pretraining-epochs", type=int, default=5)
    parser.add_argument("--epochs", type=int, default=15)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    if bool(options.vcf) != bool(options.reference) or (options.vcf and options.fasta):
        raise ConfigError("give --vcf with --reference, or --fasta, or none of them to simulate")
    its = (options.vcf or options.fasta, options.phenotypes, options.baseline)
    if any(its) != all(its):
        raise ConfigError(
            "give --phenotypes and --baseline with --vcf or --fasta, or none of them to simulate"
        )
    if options.panel and not options.vcf:
        raise ConfigError("--panel goes with --vcf: give both, or leave it out")
    least = {
        "simulated_subjects": 4 * _SPLITS, "simulated_length": 1000, "tokens": 2,
        "vocab": tokens.LEAST, "pretraining_epochs": 1, "epochs": 1, "seed": 0,
    }  # fmt: skip
    for name, value in least.items():
        if not value <= (given := getattr(options, name)) <= _MOST:
            raise ConfigError(
                f"--{name.replace('_', '-')} {given}: give a number from {value} to {_MOST}"
            )
    return options


def load(options: argparse.Namespace) -> tuple[Cohort, Cohort, np.ndarray, list[int]]:
    """The cohort, the panel to pre-train on, the labels and the baseline's places."""
    phenotypes, places = options.phenotypes, options.baseline
    if options.fasta:
        cohort = panel = read_haplotypes(options.fasta)
    else:
        reference, vcf, other = options.reference, options.vcf, options.panel
        if not vcf:
            err.print("the cohort is SIMULATED: its figures say nothing about any gene or disease")
            n, folder = options.simulated_subjects, options.out / "simulated"
            found = simulate(folder, options.simulated_length, n, n, options.seed)
            places = places or ",".join(map(str, found))
            reference, phenotypes = folder / "reference.fa", folder / "phenotypes.tsv"
            vcf, other = folder / "cohort.vcf", folder / "panel.vcf"
        region = read_reference(reference)
        cohort = read_vcf(vcf, region)
        panel = read_vcf(other, region) if other else cohort
    labels = read_phenotypes(phenotypes, cohort.subjects)
    return cohort, panel, labels, _places(places, cohort)


def _places(text: str, cohort: Cohort) -> list[int]:
    """Coordinates as indices into the region."""
    length = cohort.haplotypes_P2L.shape[2]
    try:
        places = [int(each) - cohort.start for each in text.split(",")]
    except ValueError:
        raise ConfigError(f"--baseline {text}: give coordinates with commas between") from None
    if any(not 0 <= place < length for place in places):
        last = cohort.start + length - 1
        raise ConfigError(f"--baseline {text}: the region goes from {cohort.start} to {last}")
    return places


def dosages(cohort: Cohort, places: list[int]) -> np.ndarray:
    """(P, places): how many of a subject's haplotypes have not the commonest of a place."""
    at_P2X = cohort.haplotypes_P2L[:, :, places]
    commonest_X = [np.bincount(at_P2X[:, :, i].ravel()).argmax() for i in range(len(places))]
    return (at_P2X != commonest_X).sum(1)


def shape(options: argparse.Namespace) -> ClassifierConfig:
    """The thesis's Linformer made small: 1 layer for 12, 32 numbers for 768, rank 32 for 256."""
    attention = {
        "kind": "linformer", "rank": _RANK, "length": options.tokens, "projection": "random"
    }  # fmt: skip
    return ClassifierConfig.model_validate({
        "n_classes": 2, "vocab_size": options.vocab,
        "model": {
            "d_model": 32, "d_inner": 128, "n_heads": 2, "dropout": 0.0, "norm": "pre",
            "projection": {"kind": "dense"},
            "encoder": {"n_layers": 1, "attention": attention},
        },
    })  # fmt: skip


def cut(sequences: list[Tensor], longest: int) -> list[Tensor]:
    """The sequences with what is beyond the model's longest left out, which is told."""
    n_longer = sum(len(each) > longest for each in sequences)
    if n_longer:
        err.print(
            f"{n_longer} of {len(sequences)} sequences are longer than {longest} tokens: their "
            "ends are not seen; give a greater --tokens or --vocab"
        )
    return [each[:longest] for each in sequences]


def fresh(options: argparse.Namespace) -> SequenceClassifier:
    """The model before any training, always the same.

    E and F are windows of neighbouring tokens and stay so, means for the keys, sums for the values.
    Learnt, they know each place by heart, and soon each subject of so small a cohort. Embeddings
    begin √d_model as large as positions: whoever has a token more at one site has all that
    follows at other places, which must not tell more than what stands there.
    """
    L.seed_everything(options.seed, verbose=False)
    model = shape(options).build()
    slot_S = torch.arange(options.tokens) * _RANK // options.tokens
    window_RS = one_hot(slot_S, _RANK).T.float()
    width_R1 = window_RS.sum(1, keepdim=True).clamp(min=1)
    for name, weight in model.state_dict().items():
        if name.endswith(".EF"):
            weight.copy_(torch.stack((window_RS / width_R1, window_RS))[:, None])
        elif name == "embed.weight":
            weight.mul_(model.config.model.d_model**0.5)
    return model


def pretrained(options: argparse.Namespace, panel: list[Tensor]) -> SequenceClassifier:
    """The model after masked pre-training, which is done once for the same settings and panel."""
    model, epochs = fresh(options), options.pretraining_epochs
    learnt_from = (shape(options), epochs, options.seed, [each.tolist() for each in panel])
    digest = sha256(repr(learnt_from).encode()).hexdigest()
    path = options.out / f"pretrained-{digest[:16]}.safetensors"
    if path.is_file():
        load_weights(model, path)
        return model
    rows: Rows = [(each, 0) for each in panel]
    entropy = Categorical(torch.bincount(torch.cat(panel)).float()).entropy()
    err.print(f"pre-training; who knows only how common each token is pays {entropy:.2f} nats each")
    model = fit(
        "pre-training", model, rows, None, epochs=epochs, seed=options.seed, lr=3e-3, batch=4
    )
    write_atomically(path, lambda temporary: temporary.write_bytes(save(model.state_dict())))
    return model


def scores(validation: tuple, test: tuple) -> dict[str, float]:
    """AUC and macro F1 of the test, in percent, each argument probabilities and labels.

    The threshold is the one that validation likes best. Macro: with more ill than well, a
    programme that calls all ill has a higher F1 of "ill" than any in the thesis's table.
    """
    chosen, labels = map(np.asarray, validation)
    best = max(np.unique(chosen), key=lambda at: f1_score(labels, chosen >= at, average="macro"))
    found, truth = map(np.asarray, test)
    return {
        "AUC": 100 * float(roc_auc_score(truth, found)),
        "F1": 100 * float(f1_score(truth, found >= best, average="macro")),
    }


def evaluate(kind: str, parts: list[np.ndarray], options: argparse.Namespace, data: dict) -> dict:
    """One model on one split: train, validate, test."""
    labels, (train, held, test) = data["labels"], parts
    if kind == BASELINE:
        X = data["dosages"]
        logistic = LogisticRegression().fit(X[train], labels[train])
        found = [logistic.predict_proba(X[part])[:, 1] for part in (held, test)]
    else:
        model = fresh(options) if kind == FRESH else pretrained(options, data["panel"])
        rows = [[(data["cohort"][i], int(labels[i])) for i in part] for part in parts]
        model = fit(
            kind, model, *rows[:2], epochs=options.epochs, seed=options.seed, lr=3e-3, batch=8
        )
        found = [probabilities(model, part) for part in rows[1:]]
    return scores((found[0], labels[held]), (found[1], labels[test]))


def splits(labels: np.ndarray, seed: int) -> list[list[np.ndarray]]:
    """Train, validation and test of five stratified splits: 68, 12 and 20 % of the subjects."""
    if min(np.bincount(labels, minlength=2)) < 2 * _SPLITS:
        raise DataError(f"of each phenotype {2 * _SPLITS} subjects at least are needed")
    folds = StratifiedKFold(_SPLITS, shuffle=True, random_state=seed)
    found = []
    for rest, test in folds.split(labels, labels):
        parts = train_test_split(rest, test_size=0.15, stratify=labels[rest], random_state=seed)
        found.append([*parts, test])
    return found


def table(rows: list[dict], is_simulated: bool) -> str:
    """Means over the splits, with the deviation between them, in Markdown."""
    cohort = "simulated cohort" if is_simulated else "cohort"
    lines = [
        f"| model, {cohort} | AUC (%) | F1 (%) | thesis, another cohort: AUC, F1 |",
        "| --- | ---: | ---: | ---: |",
    ]
    for kind, thesis in THESIS.items():
        cells = []
        for key in ("AUC", "F1"):
            values = [row[key] for row in rows if row["model"] == kind]
            cells.append(f"{mean(values):.2f} ± {stdev(values):.2f}")
        lines.append(f"| {kind} | {' | '.join(cells)} | {thesis[0]}, {thesis[1]} |")
    return "\n".join(lines)


def main() -> None:
    """From genotypes to the table; what an earlier run finished is not done again."""
    options, began = arguments(), time.perf_counter()
    settings = {key: str(value) for key, value in vars(options).items() if key != "out"}
    results = experiment.Results(options.out / "results.json", settings)
    cohort, panel, labels, places = load(options)
    texts, panel_texts = ([diplotype(each) for each in c.haplotypes_P2L] for c in (cohort, panel))
    model = tokens.learn(panel_texts[:20], options.vocab, options.seed)
    sequences = tokens.encode(texts, model)
    n_places, n_tokens = len(texts[0]), mean(map(len, sequences))
    err.print(f"{len(texts)} subjects, {n_places} places each, {n_tokens:.0f} tokens on average")
    data = {
        "labels": labels, "dosages": dosages(cohort, places),
        "cohort": cut(sequences, options.tokens - 1),
        "panel": cut(tokens.encode(panel_texts, model), options.tokens - 1),
    }  # fmt: skip
    for i, parts in enumerate(splits(labels, options.seed)):
        for kind in THESIS:
            if {"model": kind, "split": i} not in results:
                row = {"model": kind, "split": i, **evaluate(kind, parts, options, data)}
                results.add(row)
                err.print(f"split {i + 1}, {kind}: AUC {row['AUC']:.1f} %, F1 {row['F1']:.1f} %")
    print(table(results.rows, not (options.vcf or options.fasta)))
    passed, cpu = time.perf_counter() - began, sum(os.times()[:2])
    err.print(f"{passed:.0f} s, of which {cpu:.0f} core seconds of work")


if __name__ == "__main__":
    experiment.start("genome", main)
