"""Join recordings of single digits to utterances; test on a speaker who is not in training.

    python recipes/digits/prepare.py DIGITS_DIR data/digits [--test-speaker lucas]

Besides the other speakers train 30 voices of espeak-ng, in OUT/synthetic: no person speaks there.

DIGITS_DIR is a clone of free-spoken-digit-dataset, with recordings/7_lucas_0.wav, or has FLAC files
and `digits.tsv` (id, speaker, word, seconds). An utterance is 1 to 7 digits of one speaker with 0
to 0.2 s between them; dev takes recordings of the training speakers that are not in train. Its text
is the digits: "7204".
"""

import argparse
import csv
import random
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import soundfile as sf

from asr.errors import DataError
from data_prep.corpus_writer import Report, write_corpus
from data_prep.cuts import Utterance
from data_prep.synthesis import VOICES, draw, speak

WORDS = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"]
NAME = re.compile(r"(\d)_(.+)_(\d+)")  # of a public recording: digit, speaker, take
RATE = 8000
SIZES = {"train": 4000, "dev": 100, "test": 400}
N_SYNTHETIC = 3000
ENGLISH = [
    "en-us",
    "en-us-nyc",
    "en-gb-x-rp",
    "en-gb-x-gbclan",
    "en-gb-x-gbcwmd",
    "en-gb-scotland",
    "en-029",
]


def recordings(folder: Path, test_speaker: str) -> dict[str, dict[str, list[tuple[str, Path]]]]:
    """Return digit and path of recordings by split and speaker; every tenth take is for dev.

    Raises DataError where there are none, or none of the test's speaker or of others.
    """
    found: dict[str, dict[str, list[tuple[str, Path]]]] = {split: {} for split in SIZES}
    for digit, speaker, take, path in listed(folder):
        split = "dev" if take % 10 == 0 else "train"
        split = "test" if speaker == test_speaker else split
        found[split].setdefault(speaker, []).append((digit, path))
    if not all(found.values()):
        names = ", ".join(sorted({name for split in found.values() for name in split})) or "none"
        raise DataError(
            f"{folder}: has recordings of {names}, expected some of {test_speaker} for the test "
            "and 20 of another: give a clone of free-spoken-digit-dataset and --test-speaker"
        )
    return found


def listed(folder: Path) -> Iterator[tuple[str, str, int, Path]]:
    """Yield digit, speaker, number of the take and path of what the table or the names tell."""
    if (folder / "digits.tsv").is_file():
        with (folder / "digits.tsv").open(encoding="utf-8") as table:
            for row in csv.DictReader(table, delimiter="\t"):
                take = int(row["id"].rsplit("_", 1)[1])
                digit = str(WORDS.index(row["word"]))
                yield digit, row["speaker"], take, folder / f"{row['id']}.flac"
        return
    inside = folder / "recordings" if (folder / "recordings").is_dir() else folder
    for path in sorted(inside.glob("*.wav")):
        if name := NAME.fullmatch(path.stem):
            yield name[1], name[2], int(name[3]), path


def utterance(rng: np.random.Generator, takes: list[tuple[str, Path]]) -> tuple[str, np.ndarray]:
    """Return a random string and its waveform."""
    text, parts = "", [silence(rng, 0.05, 0.2)]
    for i in rng.integers(len(takes), size=rng.integers(1, 8)):
        digit, path = takes[i]
        text += digit
        parts += [sf.read(path, dtype="float32")[0], silence(rng, 0.0, 0.2)]
    return text, np.concatenate(parts)


def silence(rng: np.random.Generator, shortest: float, longest: float) -> np.ndarray:
    """Return silence of a random length, given its limits in seconds."""
    return np.zeros(int(rng.uniform(shortest, longest) * RATE), np.float32)


def write_synthetic(out: Path) -> Report:
    """Write a corpus of strings that synthetic voices speak."""
    rng, voices = random.Random(1), VOICES["train"].split()
    lines = []
    for i in range(N_SYNTHETIC):
        digits = " ".join(rng.choices("0123456789", k=rng.randint(1, 7)))
        lines.append(draw(rng, digits, voices[i % len(voices)], rng.choice(ENGLISH)))
    spoken = speak({"train": lines}, out, jobs=None)["train"]
    # With spaces it speaks digits, without them a number; the text has none.
    spoken = [replace(one, text=one.text.replace(" ", "")) for one in spoken]
    return write_corpus({"train": spoken}, out, corpus="digits-synthetic", synthetic=True)


def main() -> None:
    """Write the corpus."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("digits", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--test-speaker", default="lucas")
    args = parser.parse_args()
    rng = np.random.default_rng(1)
    splits: dict[str, list[Utterance]] = {}
    try:
        found = recordings(args.digits, args.test_speaker)
    except DataError as error:
        parser.error(str(error))
    for split, speakers in found.items():
        folder = args.out / "wav" / split
        folder.mkdir(parents=True, exist_ok=True)
        splits[split] = []
        for i in range(SIZES[split]):
            speaker = sorted(speakers)[i % len(speakers)]
            text, wave = utterance(rng, speakers[speaker])
            path = folder / f"{speaker}-{i:05d}.wav"
            sf.write(path, wave, RATE, subtype="PCM_16")
            splits[split].append(Utterance(f"{split}-{path.stem}", path, text, speaker))
    print(write_corpus(splits, args.out, corpus="digits"))
    print(write_synthetic(args.out / "synthetic"))


if __name__ == "__main__":
    main()
