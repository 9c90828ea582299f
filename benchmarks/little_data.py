"""Measure how accuracy follows from hours and speakers: one recipe, parts of one corpus.

    python -m benchmarks.little_data RECIPE DATA WORK [--hours 0.25 0.5 1] [--speakers 10 40]
        [--audio 60] [--set NAME key=value …] [--seeds 1 2 3] [--record]

DATA is a folder of `asr prepare` whose splits have different speakers. Every training has `--audio`
hours of audio, so that all take about the same time: a small part of the corpus is repeated more
often, and the epochs of the recipe are scaled. Dev chooses the epochs and test is measured, by
greedy CTC. Without a test, the speakers of dev are halved for the two. Each `--set` is one more
training with all of the corpus and these values changed, for an ablation. Every training is done
with each of the seeds, and the table has the means. Finished trainings in WORK are not repeated,
killed ones go on.
"""

import argparse
import math
import random
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from lhotse import CutSet
from lhotse.cut import Cut

import asr
from asr.config import Config, load_config
from asr.data.manifest import load_cuts, text_of
from asr.evaluation.evaluate import evaluate
from asr.evaluation.records import Evaluation
from asr.reporting.cost import read_cost
from benchmarks import record
from benchmarks.record import Result, Value

_ALL = math.inf


@dataclass(frozen=True)
class Case:
    """A training: of so many hours and speakers at most, with `values` of the recipe changed."""

    name: str
    hours: float = _ALL
    speakers: float = _ALL
    values: tuple[str, ...] = ()


def speaker_of(cut: Cut) -> str:
    """Return the speaker of an utterance."""
    return cut.supervisions[0].speaker or ""


def part_of(cuts: Sequence[Cut], hours: float, speakers: float, seed: int = 1) -> list[Cut]:
    """Return a random part of a corpus; a larger part holds the smaller ones of as many speakers.

    The utterances of the speakers take turns, so that few hours are of many speakers.
    """
    rng = random.Random(seed)
    shuffled = sorted(cuts, key=lambda cut: cut.id)
    rng.shuffle(shuffled)
    names = sorted({speaker_of(cut) for cut in shuffled})
    rng.shuffle(names)
    chosen = set(names if speakers == _ALL else names[: int(speakers)])
    turns: dict[str, int] = {}
    numbered = []
    for i, cut in enumerate(cut for cut in shuffled if speaker_of(cut) in chosen):
        turn = turns[speaker_of(cut)] = turns.get(speaker_of(cut), 0) + 1
        numbered.append((turn, i, cut))
    part, seconds = [], 0.0
    for _, _, cut in sorted(numbered, key=lambda each: each[:2]):
        if seconds >= 3600 * hours:
            break
        part.append(cut)
        seconds += cut.duration
    return part


def halves(cuts: Sequence[Cut]) -> tuple[list[Cut], list[Cut]]:
    """Return the utterances of every other speaker, and those of the rest."""
    names = sorted({speaker_of(cut) for cut in cuts})
    first = set(names[::2])
    return [c for c in cuts if speaker_of(c) in first], [
        c for c in cuts if speaker_of(c) not in first
    ]


def choosing_and_measured(data: Path) -> tuple[list[Cut], list[Cut]]:
    """Return a folder's utterances of dev and of test; without a test, those of dev in halves."""
    dev, test = (data / f"{split}.jsonl.gz" for split in ("dev", "test"))
    cuts = list(load_cuts(dev))
    return (cuts, list(load_cuts(test))) if test.exists() else halves(cuts)


@dataclass(frozen=True)
class Trained:
    """The data of a training, and the error rates (1 is 100 %) of its bundle."""

    hours: float
    speakers: int
    characters: int
    epochs: int
    cer: float
    wer: float | None
    core_seconds: float | None


def run(case: Case, args: argparse.Namespace, seed: int) -> Trained:
    """Train and evaluate a case with a seed."""
    out = args.work / (case.name if seed == 1 else f"{case.name}, seed {seed}")
    cuts = list(load_cuts(args.data / "train.jsonl.gz"))
    part = part_of(cuts, case.hours, case.speakers, seed)
    manifest = args.work / f"{case.name}.jsonl.gz"
    CutSet.from_cuts(part).to_file(manifest)
    hours = sum(cut.duration for cut in part) / 3600
    config = load_config(args.recipe, list(case.values))
    epochs = max(2, round(args.audio / hours / len(config.data.speed_factors)))
    values = (
        f"data.train={manifest}", f"data.dev={args.work / 'choosing.jsonl.gz'}",
        *scaled(config, epochs), f"seed={seed}", *case.values,
    )  # fmt: skip
    options = [option for value in values for option in ("--set", value)]
    command = [sys.executable, "-m", "asr.cli", "train", str(args.recipe), "--out", str(out)]
    subprocess.run([*command, "--resume", *options], check=True)
    found, cost = measure(out, args.work / "measured.jsonl.gz"), read_cost(out)
    return Trained(
        hours,
        len({speaker_of(cut) for cut in part}),
        len({character for cut in part for character in text_of(cut)} - {" "}),
        epochs,
        found.cer,
        found.wer,
        cost.core_seconds if cost else None,
    )


def scaled(config: Config, epochs: int) -> list[str]:
    """Return the values of a training in so many epochs; curriculum and pauses are scaled too."""
    share = epochs / config.training.epochs
    values = [f"training.epochs={epochs}"]
    if curriculum := config.training.curriculum:
        n_short = min(max(1, round(share * curriculum.epochs)), epochs - 1)
        values.append(f"training.curriculum.epochs={n_short}")
    if config.augment and (pauses := config.augment.pauses):
        first = min(max(1, round(share * pauses.from_epoch)), epochs)
        values.append(f"augment.pauses.from_epoch={first}")
    return values


def row_of(name: str, seeds: Sequence[Trained]) -> list[Value]:
    """Return the means over the seeds of a case; hours, speakers and epochs are the first one's."""
    first = seeds[0]

    def mean(values: Sequence[float | None], factor: float) -> float | None:
        known = [value for value in values if value is not None]
        return factor * sum(known) / len(known) if len(known) == len(seeds) else None

    return [
        name, first.hours, first.speakers, first.characters, first.epochs,
        mean([each.cer for each in seeds], 100),
        " ".join(f"{100 * each.cer:.2f}" for each in seeds) if len(seeds) > 1 else None,
        mean([each.wer for each in seeds], 100),
        mean([each.core_seconds for each in seeds], 1 / 60),
    ]  # fmt: skip


def measure(bundle: Path, measured: Path) -> Evaluation:
    """Evaluate a bundle by greedy CTC; uncertain texts count too."""
    recognizer = asr.load(bundle, "cpu")
    changes = {"method": "ctc_greedy", "confidence_threshold": 0.0}
    options = recognizer.config.decoding.model_copy(update=changes)
    return evaluate(recognizer, load_cuts(measured), options)


def cases(args: argparse.Namespace) -> list[Case]:
    """Return what is to be trained, the quick ones first."""
    return [
        *(Case(f"{hours:g} h", hours=hours) for hours in args.hours),
        *(Case(f"{n} speakers", speakers=n) for n in args.speakers),
        *(Case(name, values=tuple(values)) for name, *values in args.set),
    ]


def main() -> None:
    """Train, measure, print and record."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("recipe", type=Path)
    parser.add_argument("data", type=Path)
    parser.add_argument("work", type=Path)
    parser.add_argument("--hours", type=float, nargs="+", default=[])
    parser.add_argument("--speakers", type=int, nargs="+", default=[])
    parser.add_argument("--audio", type=float, default=60.0, help="hours of audio of a training")
    parser.add_argument("--set", nargs="+", action="append", default=[], help="NAME key=value …")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1])
    record.add_option(parser)
    args = parser.parse_args()
    args.work.mkdir(parents=True, exist_ok=True)
    choosing, measured = choosing_and_measured(args.data)
    for name, cuts in (("choosing", choosing), ("measured", measured)):
        CutSet.from_cuts(cuts).to_file(args.work / f"{name}.jsonl.gz")
    trained: dict[str, list[Trained]] = {}
    for seed in args.seeds:
        for case in cases(args):
            trained.setdefault(case.name, []).append(run(case, args, seed))
            record.progress(f"{case.name}, seed {seed}: {trained[case.name][-1]}")
    rows = [row_of(name, seeds) for name, seeds in trained.items()]
    columns = {
        "training": "", "hours": ".2f", "speakers": "d", "characters": ",d", "epochs": "d",
        "CER (%)": ".2f", "of each seed (%)": "", "WER (%)": ".2f", "core minutes": ".1f",
    }  # fmt: skip
    title = f"{args.data.name}: {args.audio:g} hours of audio in each training"
    seeds = f"; means of the seeds {', '.join(map(str, args.seeds))}" if args.seeds[1:] else ""
    note = f"{len(measured)} utterances of speakers that no training has{seeds}."
    result = Result(title=title, note=note, columns=columns, rows=rows)
    record.publish(args, "little-data", [result])


if __name__ == "__main__":
    main()
