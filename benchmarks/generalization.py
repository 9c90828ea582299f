"""Ask whether the LRT generalizes better than the dense Transformer (Cahyawijaya 2021, sec. 4.3).

    python -m benchmarks.generalization RECIPE DATA WORK [--seeds 1 2 3 4 5]
        [--rates 5e-4 1e-3 2e-3] [--remedy NAME key=value …] [--control NAME key=value …] [--record]

The recipe's network with dense maps is compared with a dense one of half its parameters, and with
LRTs of half and of as many parameters. Sizes match to 1 %. One rule holds for all: a training has
the recipe's epochs, which are enough to over-fit, and its epoch with the least dev CER is measured
on the test set. Each rate is tried with the first seed. The rate with the least dev CER is used
with the other seeds. A remedy is the LRT of equal size with other values, a control is the dense
network with other values; rates are searched in the same way. Intervals hold 95 % of bootstrap
samples of seeds and utterances. Finished trainings in WORK are not repeated, killed ones go on.
"""

import argparse
import csv
import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml

import asr
from asr.config import Config, load_config
from asr.data.manifest import load_cuts, text_of
from asr.evaluation.evaluate import evaluate
from asr.evaluation.records import UtteranceErrors
from asr.model.size import count_parameters
from asr.model.transformer import ModelConfig
from asr.runtime.files import write_text
from asr.tokenizer import Tokenizer
from benchmarks import record
from benchmarks.record import Result, Value

TOLERANCE, N_SAMPLES = 0.01, 2000
BASELINE = "dense"
Vary = Callable[[int], dict[str, Any]]
Size = Callable[[dict[str, Any]], int]


@dataclass(frozen=True)
class Network:
    """A network of the study: what it changes in the recipe, and its size."""

    name: str
    values: dict[str, Any]
    n_parameters: int


@dataclass(frozen=True)
class Measured:
    """A training: CER and losses by epoch, and errors and lengths (characters) by utterance."""

    history: list[dict[str, float]]
    errors_N: np.ndarray
    lengths_N: np.ndarray

    @property
    def best(self) -> dict[str, float]:
        """Return the epoch with the least dev CER, the last one of equals, as in the bundle."""
        return min(self.history, key=lambda row: (row["val_cer_percent"], -row["epoch"]))

    @property
    def cer(self) -> float:
        """Return the CER on the test set in percent."""
        return float(100 * self.errors_N.sum() / self.lengths_N.sum())


def networks(
    config: Config, remedies: Sequence[Sequence[str]], controls: Sequence[Sequence[str]] = ()
) -> list[Network]:
    """Return the networks with their sizes, the baseline first."""
    texts = [text_of(cut) for path in config.data.train for cut in load_cuts(path)]
    n_tokens = Tokenizer.train(texts, config.tokenizer).vocab_size
    size = partial(parameters, config.model, config.features.n_freqs, n_tokens)
    d_model, d_inner, n_heads = config.model.d_model, config.model.d_inner, config.model.n_heads
    dense, step = {"kind": "dense"}, 2 * n_heads
    whole = {"projection": dense, "d_model": d_model, "d_inner": d_inner}
    n_whole = size(whole)
    small = {"projection": dense, "d_model": round(0.65 * d_model / step) * step}
    wide = {"d_model": round(1.5 * d_model / step) * step, "d_inner": round(1.5 * d_inner)}

    def narrow(inner: int) -> dict[str, Any]:
        return small | {"d_inner": inner}

    same = {"d_model": d_model, "d_inner": d_inner}
    equal = low_rank(wide, size, n_whole)
    values = {
        BASELINE: whole,
        "dense, half": matched(narrow, size, n_whole // 2),
        "LRT, half": low_rank(same, size, n_whole // 2),
        "LRT, equal": equal,
    }
    found = [Network(name, _flat(each), size(each)) for name, each in values.items()]
    changed = [("LRT, equal", equal, each) for each in remedies]
    changed += [(BASELINE, whole, each) for each in controls]
    for kind, base, (name, *settings) in changed:
        changes = {
            key: yaml.safe_load(value) for key, _, value in (s.partition("=") for s in settings)
        }
        own = {key.removeprefix("model."): value for key, value in changes.items()}
        n_changed = size(base | {key: own[key] for key in own.keys() & base.keys()})
        found.append(Network(f"{kind}, {name}", _flat(base) | changes, n_changed))
    return found


def parameters(base: ModelConfig, n_freqs: int, n_tokens: int, changes: dict[str, Any]) -> int:
    """Return the size of a network with changed values, which is built without memory."""
    with torch.device("meta"):
        model = ModelConfig.model_validate(base.model_dump() | changes)
        return count_parameters(model.build(n_freqs, n_tokens))


def low_rank(sizes: dict[str, int], size: Size, target: int) -> dict[str, Any]:
    """Return values of LEDs of about these sizes: match the rank to the target, then `d_inner`."""

    def ranked(rank: int) -> dict[str, Any]:
        return {**sizes, "projection": {"kind": "low_rank", "rank": rank}}

    values = nearest(ranked, size, target)
    least = max(sizes["d_inner"] // 2, values["projection"]["rank"])
    return matched(lambda more: values | {"d_inner": least + more}, size, target)


def matched(vary: Vary, size: Size, target: int) -> dict[str, Any]:
    """Return the values nearest to the target.

    Raises ValueError where their size is not within `TOLERANCE` of it.
    """
    best = nearest(vary, size, target)
    if abs(size(best) - target) > TOLERANCE * target:
        raise ValueError(f"no size within {TOLERANCE:.0%} of {target:,}: {best} has {size(best):,}")
    return best


def nearest(vary: Vary, size: Size, target: int) -> dict[str, Any]:
    """Return the values whose size, which grows with a whole number, is nearest to the target."""
    least, most = 1, 4096
    while least < most:
        middle = (least + most) // 2
        try:
            is_enough = size(vary(middle)) >= target
        except ValueError:  # a rank above the full one
            is_enough = True
        least, most = (least, middle) if is_enough else (middle + 1, most)
    near = [vary(number) for number in (least - 1, least) if number > 0]
    return min(near, key=lambda values: abs(size(values) - target))


def _flat(values: dict[str, Any]) -> dict[str, Any]:
    return {f"model.{name}": value for name, value in values.items()}


def measured(network: Network, rate: float, seed: int, args: argparse.Namespace) -> Measured:
    """Train a network, if it is not yet, and measure it."""
    out = args.work / network.name.replace(", ", "-").replace(" ", "-") / f"{rate:g}-{seed}"
    changes = {
        **network.values, "seed": seed, "training.schedule.lr": rate, "training.average": 1,
        "training.patience": None,
        **{f"data.{split}": str(args.data / f"{split}.jsonl.gz") for split in ("train", "dev")},
    }  # fmt: skip
    options = [o for key, value in changes.items() for o in ("--set", f"{key}={json.dumps(value)}")]
    command = [sys.executable, "-m", "asr.cli", "train", str(args.recipe), "--out", str(out)]
    subprocess.run([*command, "--resume", *options], check=True)
    with (out / "training" / "history.csv").open(encoding="utf-8") as table:
        history = [{k: float(v) for k, v in row.items()} for row in csv.DictReader(table)]
    counts = out / "test.json"
    if not counts.exists():
        write_text(counts, json.dumps(_counted(out, args.data / "test.jsonl.gz")))
    errors_N, lengths_N = np.array(json.loads(counts.read_text("utf-8"))).T
    return Measured(history, errors_N, lengths_N)


def _counted(bundle: Path, cuts: Path) -> list[tuple[int, int]]:
    """Return the errors and the characters of each utterance, uncertain texts included."""
    recognizer, found = asr.load(bundle, "cpu"), list[UtteranceErrors]()
    options = recognizer.config.decoding.changed({"confidence_threshold": 0.0})
    evaluate(recognizer, load_cuts(cuts), options, on_group=lambda _, group: found.extend(group))
    return [(each.errors, len(each.reference.replace(" ", ""))) for each in found]


def interval(seeds: Sequence[Measured], other: Sequence[Measured] = ()) -> tuple[float, float]:
    """Return the 95 % interval of a CER in percent, or of how far it is above another's.

    A sample draws seeds of each network, and utterances that both have.
    """
    rng = np.random.default_rng(1)

    def drawn(trainings: Sequence[Measured], chosen_N: np.ndarray) -> float:
        some = rng.integers(len(trainings), size=len(trainings))
        errors = sum(trainings[i].errors_N[chosen_N].sum() for i in some)
        return float(100 * errors / len(some) / trainings[0].lengths_N[chosen_N].sum())

    samples, n = [], len(seeds[0].errors_N)
    for _ in range(N_SAMPLES):
        chosen_N = rng.integers(n, size=n)
        samples.append(drawn(seeds, chosen_N) - (drawn(other, chosen_N) if other else 0.0))
    low, high = np.quantile(samples, (0.025, 0.975))
    return float(low), float(high)


def row_of(
    network: Network, rate: float, seeds: Sequence[Measured], baseline: Sequence[Measured]
) -> list[Value]:
    """Return the row of a network."""
    low, high = interval(seeds)
    below, above = interval(seeds, baseline) if baseline else (0.0, 0.0)
    mean: Callable[[str], float] = lambda key: float(np.mean([run.best[key] for run in seeds]))  # noqa: E731
    rises = [run.history[-1]["val_loss"] - min(r["val_loss"] for r in run.history) for run in seeds]
    return [
        network.name, network.n_parameters / 1e6, f"{rate:g}", len(seeds),
        float(np.mean([run.cer for run in seeds])), f"{low:.2f} to {high:.2f}",
        f"{below:+.2f} to {above:+.2f}" if baseline else None, mean("val_cer_percent"),
        mean("train_loss"), mean("val_loss"), float(np.mean(rises)), mean("epoch"),
        float(np.mean([sum(row["seconds"] for row in run.history) for run in seeds]) / 60),
    ]  # fmt: skip


def convergence(runs: dict[str, list[Measured]]) -> Result:
    """Return the dev losses by epoch, means over the seeds, and how much they rise on their way."""
    n_epochs = len(next(iter(runs.values()))[0].history)
    epochs = [n for n in (1, 2, 4, 8, 16, 32, 64) if n < n_epochs] + [n_epochs]
    rows: list[list[Value]] = []
    for name, seeds in runs.items():
        loss_RE = np.array([[row["val_loss"] for row in run.history] for run in seeds])
        rises_R = np.maximum(np.diff(loss_RE), 0).sum(1)
        means = [float(loss_RE[:, n - 1].mean()) for n in epochs]
        deviation = float(loss_RE[:, -1].std(ddof=1)) if len(seeds) > 1 else None
        rows.append([name, *means, deviation, float(rises_R.mean())])
    columns = {"network": "", **{f"epoch {n}": ".3f" for n in epochs}}
    columns |= {"deviation of seeds": ".3f", "sum of rises": ".3f"}
    note = (
        "Dev losses, means over seeds; deviation of the last ones; the sum of all rises from an "
        "epoch to the next, which a stable training has few of."
    )
    return Result(title="Dev loss by epoch", note=note, columns=columns, rows=rows)


def main() -> None:
    """Train, measure, print and record."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("recipe", type=Path)
    parser.add_argument("data", type=Path, help="a folder of asr prepare with a test split")
    parser.add_argument("work", type=Path)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3, 4, 5])
    parser.add_argument("--rates", type=float, nargs="+", default=[5e-4, 1e-3, 2e-3])
    parser.add_argument("--remedy", nargs="+", action="append", default=[], help="NAME key=value …")
    parser.add_argument("--control", nargs="+", action="append", default=[], help="the same, dense")
    record.add_option(parser)
    args = parser.parse_args()
    config = load_config(args.recipe, [f"data.train={args.data / 'train.jsonl.gz'}"])
    rows: list[list[Value]] = []
    runs = dict[str, list[Measured]]()
    for network in networks(config, args.remedy, args.control):
        tried = {rate: measured(network, rate, args.seeds[0], args) for rate in args.rates}
        rate = min(tried, key=lambda rate: tried[rate].best["val_cer_percent"])
        others = [measured(network, rate, seed, args) for seed in args.seeds[1:]]
        runs[network.name] = [tried[rate], *others]
        baseline = runs[BASELINE] if len(runs) > 1 else []
        rows.append(row_of(network, rate, runs[network.name], baseline))
        record.progress(f"{rows[-1]}")
    columns = {
        "network": "", "M parameters": ".3f", "rate": "", "seeds": "d", "test CER (%)": ".2f",
        "95 %": "", "above dense, 95 %": "", "dev CER (%)": ".2f", "train loss": ".3f",
        "dev loss": ".3f", "dev loss rises by": ".3f", "best epoch": ".1f", "minutes": ".1f",
    }  # fmt: skip
    note = (
        "Losses and CERs are means over seeds at the epoch of the least dev CER; dev loss rises by "
        "so much from its least to the last epoch."
    )
    title = f"Generalization: {args.data.name}"
    result = Result(title=title, note=note, columns=columns, rows=rows)
    record.publish(args, "generalization", [result, convergence(runs)])


if __name__ == "__main__":
    main()
