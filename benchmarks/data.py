"""Measure what a batch costs before it reaches the network, beside a training step.

    python -m benchmarks.data [--quick] [--record]

Recordings of 4.5 s (noise: what they say does not matter) in 16-bit WAV are prepared as any
corpus is, then read, cut into features and batched by the product's own loader, in the process
that trains (`data.num_workers: 0`). The step is that of `benchmarks/training.py`.
"""

import argparse
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

import numpy as np
import soundfile
import torch

from asr.audio.features import LogMelConfig
from asr.config import Config, load_config
from asr.data.dataset import SpeechDataset
from asr.data.manifest import load_training_cuts, text_of
from asr.data.sampling import EpochSteps, loader, plan_epoch
from asr.tokenizer import Tokenizer
from benchmarks import record
from benchmarks.record import Result, Value
from benchmarks.training import RECIPE, TOKENS, measure
from data_prep.corpus_writer import write_corpus
from data_prep.cuts import Utterance

SECONDS, RATE, BATCH = 4.5, 16000, 12
LETTERS = [chr(0x4E00 + i) for i in range(200)]


def corpus(root: Path, n: int) -> Config:
    """Make a corpus of n utterances in `root`; return the recipe over it."""
    rng = np.random.default_rng(0)
    utterances = []
    for i in range(n):
        path = root / f"{i}.wav"
        soundfile.write(path, rng.normal(0, 0.1, int(SECONDS * RATE)), RATE, subtype="PCM_16")
        text = "".join(rng.choice(LETTERS, TOKENS - 1))
        utterances.append(Utterance(f"u{i}", path, text, "speaker"))
    splits = {"train": utterances[:-2], "dev": utterances[-2:-1], "test": utterances[-1:]}
    write_corpus(splits, root, corpus="noise", synthetic=True, jobs=1)
    files = [f"data.{split}={root / split}.jsonl.gz" for split in ("train", "dev")]
    return load_config(RECIPE, [*files, f"data.batch_seconds={BATCH * SECONDS + 0.1}"])


def loading(config: Config) -> float:
    """Return the median seconds to load a batch."""
    cuts = load_training_cuts(config.data)
    tokenizer = Tokenizer.train(map(text_of, cuts), config.tokenizer)
    dataset = SpeechDataset(config.features.build(), tokenizer, RATE)
    steps = [[list(batch)] for batch in plan_epoch(cuts, config.data.batch_seconds, 1, 0)]
    seconds, start = [], time.perf_counter()
    for step in loader(dataset, EpochSteps(steps), 0):
        if len(step.batches[0].ids) == BATCH:
            seconds.append(time.perf_counter() - start)
        start = time.perf_counter()
    return median(seconds[1:])


def times_real_time(extract: Callable[[torch.Tensor], torch.Tensor], rounds: int) -> float:
    """Return how many seconds of audio a core makes features of in a second."""
    wave_N, seconds = torch.randn(int(SECONDS * RATE)), []
    for _ in range(rounds):
        start = time.perf_counter()
        extract(wave_N)
        seconds.append(time.perf_counter() - start)
    return SECONDS / median(seconds)


def main() -> None:
    """Measure, print and record."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="fewer batches and rounds")
    record.add_option(parser)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        batch = loading(corpus(Path(folder), BATCH * (5 if args.quick else 20) + 2))
    rows: list[list[Value]] = [[f"loading a batch of {BATCH}", f"{1000 * batch:.0f} ms"]]
    record.progress(f"{rows[0]}")
    names = ["transformer_large", "lrt_r50", "lrt_r50, vgg_low_rank"]
    steps, _ = measure(names, BATCH, 3 if args.quick else 7)
    rows += [[f"the same, of a step of {name}", f"{batch / s:.1%}"] for name, s in steps.items()]
    torch.set_num_threads(1)
    config = load_config(RECIPE)
    for kind in (config.features, LogMelConfig(kind="log_mel")):
        speed = times_real_time(kind.build(), 20 if args.quick else 200)
        rows.append([f"{kind.kind} of a waveform, one core", f"{speed:,.0f} × real time"])
    note = "The aim is at most 10 % of a step."
    columns = {"what": "", "measured": ""}
    result = Result(title="Loading beside a step", note=note, columns=columns, rows=rows)
    record.publish(args, "data", [result])


if __name__ == "__main__":
    main()
