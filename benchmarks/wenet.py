"""Train WeNet's U2++ Conformer on a corpus of ours, for as much core time as ours had.

    git clone https://github.com/wenet-e2e/wenet WENET    # measured: 01546996
    taskset -c 0 python -m benchmarks.wenet WENET DATA OUT --minutes 104
        [--hours 1] [--speakers 5] [--ctc-weight 0.7] [--whole-context] [--d-model 192]
        [--inner 640] [--layers 8] [--warm-up 800] [--record]

The model, its losses and its four ways of decoding are WeNet's, imported from the checkout. The
loop around them is here, after WeNet's AiShell recipe: 80 filter banks, speeds 0.9 to 1.1,
SpecAugment and spec_sub, Adam with a warm-up, label smoothing 0.1, reverse_weight 0.3, and dynamic
chunks unless `--whole-context`. As in our recipes, training begins with the shorter utterances
alone, steps are of 32 s, and products are in bfloat16 where the processor computes in it. `--hours`
or `--speakers` take the part of the corpus that `benchmarks.little_data` takes. Dev chooses how
many of the last weights are averaged. Test is measured, or, without one, the half of dev's speakers
that did not choose. Minutes are those of the process alone, on one core. A killed training goes on
from its last evaluation.
"""

import argparse
import copy
import math
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import torchaudio
from lhotse.cut import Cut
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from torchaudio.compliance import kaldi

from asr.data.manifest import load_cuts, read_wave, text_of
from asr.evaluation.cer import ErrorCounts, character_errors
from asr.normalization import normalize_text
from asr.runtime.devices import has_bfloat16
from benchmarks import record
from benchmarks.little_data import choosing_and_measured, part_of
from benchmarks.record import Result
from benchmarks.wenet_model import build, import_wenet

RATE = 16_000
METHODS = ("ctc_greedy_search", "ctc_prefix_beam_search", "attention", "attention_rescoring")
SPEEDS = (0.9, 1.0, 1.1)
_STEP_SECONDS = 32.0
_SHORT_SHARE = 0.15  # of the time, with the shorter half of the utterances alone
N_AVERAGED = (1, 2, 4)  # weights, of the last evaluations


@dataclass
class Corpus:
    """The utterances of a training, their filter banks, and the numbers of their characters.

    0 is the blank, 1 the unknown character; the last number begins and ends a text.
    """

    train: list[Cut]
    characters: list[str] = field(init=False)
    cached: dict[tuple[str, float], Tensor] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        self.characters = sorted({char for cut in self.train for char in spelled(cut)})
        self.numbers = {char: i + 2 for i, char in enumerate(self.characters)}
        self.end = len(self.characters) + 2

    def tokens(self, cut: Cut) -> Tensor:
        """Return a training utterance's characters as numbers, shape (n_characters,)."""
        return torch.tensor([self.numbers[char] for char in spelled(cut)])

    def text(self, tokens: Sequence[int]) -> str:
        """Return what the numbers of a hypothesis spell."""
        return "".join(self.characters[i - 2] for i in tokens if 2 <= i < self.end)

    def spoken(self, cut: Cut, speed: float) -> Tensor:
        """Return the filter banks at a speed, shape (frames, 80); those of training are kept."""
        key = (cut.id, speed)
        if key not in self.cached:
            self.cached[key] = filter_banks(cut, speed, dither=1.0).half()
        return self.cached[key].float()


def spelled(cut: Cut) -> str:
    """Return the normalized text of an utterance."""
    return normalize_text(text_of(cut))


def filter_banks(cut: Cut, speed: float = 1.0, dither: float = 0.0) -> Tensor:
    """Return 80 filter banks of 25 ms every 10 ms, shape (frames, 80); training adds a dither."""
    wave = read_wave(cut, RATE)[None]
    if speed != 1.0:
        wave = torchaudio.functional.resample(wave, int(RATE * speed), RATE)
    banks: Tensor = kaldi.fbank(
        wave * 32768, num_mel_bins=80, frame_length=25, frame_shift=10, dither=dither,
        energy_floor=0.0, sample_frequency=RATE,
    )  # fmt: skip
    return banks


def masked(features: Tensor, rng: random.Random) -> Tensor:
    """Return filter banks with two masks each way and three parts replaced by earlier frames."""
    n_frames, n_bins = features.shape
    result = features.clone()
    for _ in range(2):
        start = rng.randrange(n_frames)
        result[start : start + rng.randint(1, 50)] = 0
        low = rng.randrange(n_bins)
        result[:, low : low + rng.randint(1, 10)] = 0
    before = result.clone()
    for _ in range(3):
        start = rng.randrange(n_frames)
        end, back = min(n_frames, start + rng.randint(1, 30)), rng.randint(0, start)
        result[start:end] = before[start - back : end - back]
    return result


def batches(cuts: list[Cut], only_short: bool, rng: random.Random) -> list[list[tuple[Cut, float]]]:
    """Return an epoch's batches: each utterance at one speed, with others of about its length."""
    items = [(cut, rng.choice(SPEEDS)) for cut in cuts]
    if only_short:
        items = sorted(items, key=lambda item: item[0].duration)[: len(items) // 2]
    items.sort(key=lambda item: item[0].duration / item[1] + 0.3 * rng.random())
    found: list[list[tuple[Cut, float]]] = [[]]
    for cut, speed in items:
        if found[-1] and cut.duration / speed * (len(found[-1]) + 1) > _STEP_SECONDS:
            found.append([])
        found[-1].append((cut, speed))
    rng.shuffle(found)
    return found


def errors(model: Any, corpus: Corpus, cuts: Sequence[Cut], methods: Sequence[str]) -> list[float]:
    """Return the CER (%) of each way of decoding."""
    model.eval()
    texts: dict[str, list[str]] = {name: [] for name in methods}
    with torch.inference_mode():
        for cut in cuts:
            features = filter_banks(cut)[None]
            found = model.decode(
                list(methods), features, torch.tensor([features.shape[1]]), beam_size=10,
                ctc_weight=0.5, reverse_weight=0.3,
            )  # fmt: skip
            for name in methods:
                texts[name].append(corpus.text(found[name][0].tokens))
    model.train()
    spoken = [text_of(cut) for cut in cuts]
    return [
        100 * sum(map(character_errors, spoken, texts[name]), ErrorCounts()).rate
        for name in methods
    ]


class Training:
    """A training in twelve parts, each of which ends with a CER of dev and its state in OUT."""

    N_PARTS = 12

    def __init__(self, model: Any, corpus: Corpus, args: argparse.Namespace) -> None:
        """Begin a training, or go on with the state that OUT holds."""
        self.model, self.corpus, self.args = model, corpus, args
        self.optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
        self.state: dict[str, Any] = {"seconds": 0.0, "step": 0, "epoch": 0, "weights": []}
        self.file = args.out / "state.pt"
        if self.file.exists():
            self.state = torch.load(self.file, weights_only=True)
            model.load_state_dict(self.state["weights"][-1])
            self.optimizer.load_state_dict(self.state["optimizer"])

    def run(self, choosing: Sequence[Cut]) -> None:
        """Train for `--minutes`; print the CER of dev after each part."""
        budget = 60 * self.args.minutes
        part = budget / self.N_PARTS
        while self.state["seconds"] < budget:
            losses = self.train_until(part * (self.state["seconds"] // part + 1))
            (cer,) = errors(self.model, self.corpus, choosing, METHODS[:1])
            weights = [*self.state["weights"], copy.deepcopy(self.model.state_dict())]
            self.state["weights"] = weights[-max(N_AVERAGED) :]
            self.save()
            step, minutes = self.state["step"], self.state["seconds"] / 60
            record.progress(
                f"step {step}, {minutes:.1f} minutes, CTC {losses[0]:.2f}, attention "
                f"{losses[1]:.2f}, dev CER {cer:.2f} %"
            )

    def save(self) -> None:
        """Write the state, all of it or nothing."""
        written = self.file.with_suffix(".part")
        torch.save(self.state | {"optimizer": self.optimizer.state_dict()}, written)
        written.replace(self.file)

    def train_until(self, seconds: float) -> list[float]:
        """Train until so much time of this process is used; return the mean losses."""
        found = []
        while True:
            self.state["epoch"] += 1
            rng = random.Random(self.state["epoch"])
            is_early = self.state["seconds"] < _SHORT_SHARE * 60 * self.args.minutes
            for batch in batches(self.corpus.train, is_early, rng):
                began = time.process_time()
                found.append(self.step(batch, rng))
                self.state["seconds"] += time.process_time() - began
                if self.state["seconds"] >= seconds:
                    return torch.tensor(found).mean(0).tolist()

    def step(self, batch: list[tuple[Cut, float]], rng: random.Random) -> tuple[float, float]:
        """Take one step; return the losses by CTC and by attention."""
        self.state["step"] += 1
        step, warm_up = self.state["step"], self.args.warm_up
        for group in self.optimizer.param_groups:
            group["lr"] = 1e-3 * min(step / warm_up, math.sqrt(warm_up / step))
        features = [masked(self.corpus.spoken(cut, speed), rng) for cut, speed in batch]
        tokens = [self.corpus.tokens(cut) for cut, _ in batch]
        inputs = {
            "feats": pad_sequence(features, batch_first=True),
            "feats_lengths": torch.tensor([len(each) for each in features]),
            "target": pad_sequence(tokens, batch_first=True, padding_value=-1),
            "target_lengths": torch.tensor([len(each) for each in tokens]),
            "langs": None,
            "tasks": None,
        }
        cpu = torch.device("cpu")
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=has_bfloat16(cpu)):
            found = self.model(inputs, cpu)
        self.optimizer.zero_grad()
        found["loss"].backward()
        norm = torch.nn.utils.clip_grad_norm_(self.model.parameters(), 5.0)
        if torch.isfinite(norm):
            self.optimizer.step()
        return float(found["loss_ctc"].detach()), float(found["loss_att"].detach())


def averaged(weights: Sequence[dict[str, Tensor]]) -> dict[str, Tensor]:
    """Return the mean of weights; integers, such as counts, are those of the last weights."""
    return {
        name: torch.stack([each[name] for each in weights]).mean(0)
        if last.is_floating_point()
        else last
        for name, last in weights[-1].items()
    }


def result(training: Training, choosing: Sequence[Cut], measured: Sequence[Cut]) -> Result:
    """Decode with the mean of the last weights that is best on dev, in every way."""
    model, corpus, args = training.model, training.corpus, training.args
    choices = {}
    for n in N_AVERAGED:
        model.load_state_dict(averaged(training.state["weights"][-n:]))
        choices[n] = errors(model, corpus, choosing, METHODS[:1])[0]
    best = min(choices, key=lambda n: choices[n])
    model.load_state_dict(averaged(training.state["weights"][-best:]))
    found = errors(model, corpus, measured, METHODS)
    hours = sum(cut.duration for cut in corpus.train) / 3600
    minutes = training.state["seconds"] / 60
    millions = sum(weight.numel() for weight in model.parameters()) / 1e6
    note = (
        f"{len(measured)} utterances of speakers that no training has. U2++ Conformer of "
        f"{millions:.2f} M parameters (d {args.d_model}, {args.layers} layers, {args.inner} inner, "
        f"one decoder layer in each direction), CTC weight {args.ctc_weight:g}, "
        f"{'whole context' if args.whole_context else 'dynamic chunks'}, {training.state['step']} "
        f"steps, a warm-up of {args.warm_up}; the mean of its last {best} weights, by dev."
    )
    return Result(
        title=f"WeNet's U2++ Conformer on {args.data.name}, {hours:.2g} h, {minutes:.0f} minutes",
        note=note,
        columns={"decoding": "", "hours": ".2f", "core minutes": ".1f", "CER (%)": ".2f"},
        rows=[[name, hours, minutes, cer] for name, cer in zip(METHODS, found, strict=True)],
    )  # fmt: skip


def main() -> None:
    """Train, measure, print and record."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("wenet", type=Path)
    parser.add_argument("data", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--minutes", type=float, required=True)
    parser.add_argument("--hours", type=float, default=math.inf)
    parser.add_argument("--speakers", type=float, default=math.inf)
    parser.add_argument("--ctc-weight", type=float, default=0.3)
    parser.add_argument("--whole-context", action="store_true")
    parser.add_argument("--d-model", type=int, default=192)
    parser.add_argument("--inner", type=int, default=640)
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--warm-up", type=int, default=800)
    record.add_option(parser)
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    import_wenet(args.wenet)
    torch.set_num_threads(1)
    torch.manual_seed(1)
    choosing, measured = choosing_and_measured(args.data)
    corpus = Corpus(
        part_of(list(load_cuts(args.data / "train.jsonl.gz")), args.hours, args.speakers)
    )
    some = random.Random(1).sample(corpus.train, min(400, len(corpus.train)))
    frames = torch.cat([filter_banks(cut) for cut in some])
    training = Training(build(frames, corpus.end + 1, args), corpus, args)
    training.run(choosing)
    record.publish(args, "little-data", [result(training, choosing, measured)])


if __name__ == "__main__":
    main()
