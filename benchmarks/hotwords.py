"""Measure what hotwords bring: recall of rare phrases, false alarms, CER elsewhere and time.

    python -m benchmarks.hotwords BUNDLE TRAIN CUTS [--most 1000] [--phrases 200] [--record]

The rare phrases are pieces of the texts of half of CUTS, such as `dev.jsonl.gz`, that the texts of
TRAIN have at most `--often` times. A piece has two to four Chinese characters, or one or two words,
which the model can write. A text gives at most one phrase, and no phrase is within another. Pieces
of the training texts are added, up to 1,000 phrases in all; most of these are in no utterance.

Recall is the share of the rare phrases' occurrences in the references that the texts have too. A
false alarm is an occurrence of any phrase in a text beyond those in its reference, as a share of
the words (Chinese characters) of all references. CER elsewhere is that of the utterances without a
rare phrase. Each utterance is decoded alone, without and with hotwords in turn, and uncertain texts
count too. All ways share one encoder pass, and the time of each includes it.
"""

import argparse
import random
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from torch import Tensor

import asr
from asr.data.manifest import load_cuts, read_wave, text_of
from asr.decoding.options import DecodingOptions
from asr.evaluation.cer import character_errors
from asr.normalization import HAN_LETTER
from asr.tokenizer import UNK
from asr.transcription.recognizer import Recognizer
from benchmarks import record
from benchmarks.record import Result, Value

_ALL = 1000  # phrases
_METHODS = ("ctc_beam", "rescore", "joint")


def units(text: str) -> list[str]:
    """Return a text as Chinese characters, or as words with a space after each."""
    return list(text) if HAN_LETTER.search(text) else [f"{word} " for word in text.split()]


def pieces(text: str) -> Iterator[str]:
    """Yield the pieces of a text that may be phrases."""
    parts, is_han = units(text), bool(HAN_LETTER.search(text))
    for length in (2, 3, 4) if is_han else (1, 2):
        for start in range(len(parts) - length + 1):
            piece = "".join(parts[start : start + length]).strip()
            if not is_han or len(HAN_LETTER.findall(piece)) == length:
                yield piece


def occurrences(phrase: str, text: str) -> int:
    """Return how often a phrase is in a text, as whole words where it has no Chinese character."""
    if HAN_LETTER.search(phrase):
        return text.count(phrase)
    return f" {text} ".replace(" ", "  ").count(f" {phrase.replace(' ', '  ')} ")


def choose(
    model: Recognizer, train: Iterable[str], texts: list[str], often: int, most: int
) -> tuple[list[str], list[str]]:
    """Return the rare phrases of texts, and other pieces of training texts as distractors."""
    rng, known = random.Random(0), Counter[str]()
    for text in train:
        known.update(pieces(text))
    rare: list[str] = []
    for text in rng.sample(texts, len(texts) // 2):
        found = [p for p in pieces(text) if known[p] <= often and _is_known(model, p)]
        found = [p for p in found if not any(p in other or other in p for other in rare)]
        if found and len(rare) < most:
            rare.append(rng.choice(found))
    others = [p for p in sorted(known) if len(p) > 1 and not any(p in r or r in p for r in rare)]
    return rare, rng.sample(others, min(len(others), max(0, _ALL - len(rare))))


def _is_known(model: Recognizer, phrase: str) -> bool:
    return UNK not in model.tokenizer.encode(phrase)


@dataclass
class Counts:
    """Counts of one way of decoding; `errors` and `elsewhere` (units) are of the other utterances.

    The other utterances are those without a rare phrase.
    """

    wanted: int = 0
    found: int = 0
    false: int = 0
    words: int = 0
    errors: int = 0
    elsewhere: int = 0
    seconds: float = 0.0
    texts: list[str] = field(default_factory=list)

    def add(self, reference: str, text: str, rare: list[str], others: list[str]) -> None:
        """Count an utterance."""
        has_any = False
        for phrase in others:
            self.false += max(0, occurrences(phrase, text) - occurrences(phrase, reference))
        for phrase in rare:
            wanted, got = occurrences(phrase, reference), occurrences(phrase, text)
            self.wanted, self.found = self.wanted + wanted, self.found + min(wanted, got)
            self.false += max(0, got - wanted)
            has_any |= wanted > 0
        self.words += len(units(reference))
        if not has_any:
            counts = character_errors(reference, text)
            self.errors += counts.errors
            self.elsewhere += counts.reference_length

    def row(self, name: str, plain: "Counts") -> list[Value]:
        """Return a row of the table."""
        missed = plain.wanted - plain.found
        better = (self.found - plain.found) / missed if missed else None
        return [
            name, f"{self.found} of {self.wanted}", None if better is None else 100 * better,
            100 * (self.false - plain.false) / self.words, 100 * self.errors / self.elsewhere,
            self.seconds / plain.seconds,
        ]  # fmt: skip


def decoded(
    model: Recognizer, waves: list[Tensor], options: list[DecodingOptions]
) -> list[tuple[list[str], float]]:
    """Return texts and process seconds for each of several options; each includes the encoding."""
    texts: list[list[str]] = [[] for _ in options]
    seconds = [0.0 for _ in options]
    for wave in waves:
        start = time.process_time()
        batches = list(model.encode([wave]))
        encoding = time.process_time() - start
        for i, each in enumerate(options):
            start = time.process_time()
            found = [nbest[0].text for _, e in batches for (nbest) in model.decode(e, each)]
            seconds[i] += encoding + time.process_time() - start
            texts[i].append("".join(found))
    return list(zip(texts, seconds, strict=True))


def main() -> None:
    """Choose phrases, decode by each method, print and record."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("bundle", type=Path)
    parser.add_argument("train", type=Path)
    parser.add_argument("cuts", type=Path)
    parser.add_argument("--most", type=int, default=1000, help="utterances")
    parser.add_argument("--phrases", type=int, default=200, help="of the utterances")
    parser.add_argument("--often", type=int, default=1, help="in training, at most")
    parser.add_argument("--methods", nargs="+", default=list(_METHODS))
    parser.add_argument("--weights", nargs="+", type=float, default=[1.0, 1.5, 2.0, 3.0])
    record.add_option(parser)
    args = parser.parse_args()
    model = asr.load(args.bundle, "cpu")
    normalize = model.config.tokenizer.normalize
    cuts = sorted((c for c in load_cuts(args.cuts) if text_of(c)), key=lambda c: c.id)
    cuts = cuts[:: -(-len(cuts) // args.most)]
    references = [normalize(text_of(cut)) for cut in cuts]
    train = [normalize(text_of(cut)) for cut in load_cuts(args.train)]
    rare, others = choose(model, train, references, args.often, args.phrases)
    record.progress(f"{len(rare)} phrases such as {rare[:8]}, {len(others)} others")
    waves, phrases = [read_wave(cut, model.sample_rate) for cut in cuts], rare + others
    rows: list[list[Value]] = []
    for method in args.methods:
        plain = model.config.decoding.changed({"method": method, "confidence_threshold": 0.0})
        given = [plain, *[plain.changed({"hotwords": phrases, "hotword_weight": w})
                          for w in args.weights]]  # fmt: skip
        names = [f"{method}, without", *[f"{method}, weight {w:g}" for w in args.weights]]
        counts = []
        for texts, seconds in decoded(model, waves, given):
            counts.append(Counts(seconds=seconds))
            for reference, text in zip(references, texts, strict=True):
                counts[-1].add(reference, text, rare, others)
        rows += [c.row(name, counts[0]) for name, c in zip(names, counts, strict=True)]
        record.progress("\n".join(map(str, rows[-len(names) :])))
    columns = {
        "decoding": "", "rare phrases found": "", "fewer missed (%)": ".1f",
        "more false alarms (% of words)": ".3f", "CER elsewhere (%)": ".2f", "time": ".3f",
    }  # fmt: skip
    note = (
        f"{len(rare)} phrases of {len(cuts)} utterances that training has at most {args.often} "
        f"times, and {len(others)} other phrases of training. Time is a ratio."
    )
    title = f"Hotwords: {args.bundle.name}"
    record.publish(args, "hotwords", [Result(title=title, note=note, columns=columns, rows=rows)])


if __name__ == "__main__":
    main()
