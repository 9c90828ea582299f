"""HKUST Mandarin telephone conversations: LDC2005S15 (speech) and LDC2005T32 (transcripts).

A call is a two-channel SPHERE file, 8 kHz, and a GBK text of lines `start end A: text` in seconds;
side A is channel 1. The 24 calls of the LDC's dev folder are the test set; the first 4,001 of the
sorted train utterances are the dev set, as in the other toolkits' recipes, or a tenth where the
corpus is too small for that. Cuts have the transcript's own times, and only the ids are rounded
(to centiseconds, as others' are).
"""

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from rich.console import Console

from asr.errors import DataError
from asr.tokenizer import normalize_text
from data_prep.corpus_writer import LeftOut, Report, Utterance, compare_with_published, write_corpus

DEV_UTTERANCES = 4_001

# Calls; train utterances, dev among them; utterances and characters of the LDC's dev set.
FULL = {
    "calls": 897,
    "train and dev utterances": 197_387,
    "test utterances": 5_413,
    "test characters": 56_154,
}

# What others do to a transcript, in their order (capitals, the eighth rule, and spaces are
# `normalize_text`'s), then what none of them does: other tags in braces, and in brackets those of
# Latin letters, go; so does every mark that is not said, full-width too, but for an apostrophe
# within a word.
RULES = tuple(
    (re.compile(pattern), replacement)
    for pattern, replacement in (
        (r'<foreign language="[^">]*">', " "),
        (r"</foreign>", " "),
        (r"<noise>(.+)</noise>", r"\1"),
        (r"\(\((.*?)\)\)", r"\1"),
        (r"(?<!\S)(?:\{(?:breath|cough|sneeze|lipsmack|laugh)\}|<noise>)(?!\S)", ""),
        (r"[.,?+-]+", ""),
        (r"[~%](?=\S)", ""),
        (r"\{[^{}]*\}|\[[A-Za-z ]*\]|<[^<>]*>", " "),
        (r"(?<![A-Za-z])'|'(?![A-Za-z])|[^\w\s']|_", ""),
    )
)

_CALL = re.compile(r"#\s*(\w+_A\w+_B\w+)\s*")
_LINE = re.compile(r"\s*(\d+(?:\.\d*)?)\s+(\d+(?:\.\d*)?)\s+([AB]):(.*)", re.DOTALL)


class _Files(NamedTuple):
    """What lies on disk, by split and call; names are compared in capitals."""

    recordings: dict[tuple[str, str], Path]
    transcripts: dict[tuple[str, str], Path]
    dropped: list[LeftOut]


class _Segment(NamedTuple):
    """A line of a transcript; times in seconds."""

    call: str
    side: str
    start: float
    end: float
    text: str
    where: str

    @property
    def centiseconds(self) -> tuple[int, int]:
        """Start and end, rounded as the awk of others' recipes does it."""
        return round(100 * self.start + 0.5), round(100 * self.end + 0.5)

    @property
    def id(self) -> str:
        """The id that it has in others' recipes."""
        return "{}-{}-{:06}-{:06}".format(self.call, self.side, *self.centiseconds)


def prepare(corpus: Path, out: Path, *, jobs: int | None = None) -> Report:
    """Write the cuts and the report of the HKUST corpus anywhere under `corpus` to `out`.

    Folders audio/{train,dev} and trans/{train,dev} are found in any case of letters. Raises
    DataError where there are none, or where no utterance can be used.
    """
    files = _find(corpus)
    by_split = {split: _utterances(files, split) for split in ("train", "dev")}
    splits = _split(by_split["train"], by_split["dev"])
    report = write_corpus(splits, out, corpus="hkust", left_out=files.dropped, jobs=jobs)
    test_text = "".join(normalize_text(utterance.text) for utterance in splits["test"])
    found = {
        "calls": len(files.recordings),
        "train and dev utterances": sum(report.splits[s].utterances for s in ("train", "dev")),
        "test utterances": report.splits["test"].utterances,
        "test characters": len(test_text.replace(" ", "")),
    }
    compare_with_published({name: (found[name], FULL[name]) for name in FULL})
    return report


def normalize(text: str) -> str:
    """What was said in a line of the transcripts; empty where it was no speech."""
    for pattern, replacement in RULES:
        text = pattern.sub(replacement, text)
    return normalize_text(text)


def _find(corpus: Path) -> _Files:
    files = _Files({}, {}, [])
    for path in _walk(corpus):
        folders = "/".join(path.relative_to(corpus).parts[:-1]).lower()
        place = re.search(r"(?:^|/)(audio|trans)/(train|dev)(?:/|$)", folders)
        if place is None:
            continue
        kind = {("audio", ".sph"): files.recordings, ("trans", ".txt"): files.transcripts}.get(
            (place[1], path.suffix.lower())
        )
        if kind is None:
            continue
        if kind.setdefault((place[2], path.stem.upper()), path) != path:
            files.dropped.append(LeftOut(path.stem, "", str(path), "duplicate_file"))
    if not files.recordings or not files.transcripts:
        lacking = "audio/train/*.sph" if files.transcripts else "trans/train/*.txt"
        raise DataError(
            f"{corpus}: is not HKUST, as it has no {lacking}; give the folder that holds both "
            "LDC2005S15 and LDC2005T32."
        )
    return files


def _walk(folder: Path) -> Iterator[Path]:
    """Yield all files in order; links are followed, but no folder is entered twice."""
    entered = set()
    for place, folders, names in os.walk(folder, followlinks=True):
        real = os.path.realpath(place)
        folders[:] = [] if real in entered else sorted(folders)
        yield from (Path(place, name) for name in sorted(names) if real not in entered)
        entered.add(real)


def _utterances(files: _Files, split: str) -> list[Utterance]:
    """Return what is said in the calls of the LDC's train or dev folder, sorted by id."""
    named, kept, heard = {"train": "train", "dev": "test"}[split], [], set()
    for key, path in files.transcripts.items():
        if key[0] != split:
            continue
        for segment in _read_transcript(path, named, files.dropped):
            recording = files.recordings.get((split, segment.call.upper()))
            heard.add((split, segment.call.upper()))
            text = normalize(segment.text)
            reason = _reason(segment, split, text, recording)
            if reason or recording is None:
                files.dropped.append(LeftOut(segment.id, named, segment.where, reason))
                continue
            speaker, length = f"{segment.call}-{segment.side}", segment.end - segment.start
            channel = "AB".index(segment.side)
            kept.append(
                Utterance(segment.id, recording, text, speaker, segment.start, length, channel)
            )
    files.dropped.extend(
        LeftOut(path.stem, named, str(path), "no_transcript")
        for key, path in files.recordings.items()
        if key[0] == split and key not in heard
    )
    return sorted(kept, key=lambda utterance: utterance.id.encode())


def _reason(segment: _Segment, split: str, text: str, recording: Path | None) -> str:
    """Return why a segment is left out, or nothing."""
    if split == "train" and re.search("[AB]:", segment.text):
        return "broken_line"  # two lines of the release in one
    if segment.centiseconds[0] >= segment.centiseconds[1]:
        return "empty_segment"
    if recording is None:
        return "no_recording"
    return "" if text else "empty_transcript"


def _read_transcript(path: Path, split: str, dropped: list[LeftOut]) -> Iterator[_Segment]:
    """Yield the lines of one call; those that cannot be read go to `dropped`."""
    try:
        content = path.read_bytes()
    except OSError:
        dropped.append(LeftOut(path.stem, split, str(path), "unreadable_transcript"))
        return
    # A file that says it is UTF-8 was converted by its owner. No GBK character holds a newline.
    bom = b"\xef\xbb\xbf"
    encoding = "utf-8" if content.startswith(bom) else "gbk"
    call, offset = path.stem, 0
    for number, raw in enumerate(content.split(b"\n"), 1):
        where, begin = f"{path}:{number}", offset
        offset += len(raw) + 1
        try:
            line = raw.decode(encoding).lstrip("\ufeff").strip()
        except UnicodeDecodeError as error:
            where += f" byte {begin + error.start}"
            dropped.append(LeftOut(f"{call}:{number}", split, where, f"undecodable_{encoding}"))
            continue
        if header := _CALL.fullmatch(line):
            call = header[1]
        elif found := _LINE.fullmatch(line):
            start, end, side, text = found.groups()
            yield _Segment(call, side, float(start), float(end), text, where)
        elif line and not line.startswith("#"):
            dropped.append(LeftOut(f"{call}:{number}", split, where, "malformed_line"))


def _split(train: list[Utterance], test: list[Utterance]) -> dict[str, list[Utterance]]:
    size = min(DEV_UTTERANCES, -(-len(train) // 10))
    if size < DEV_UTTERANCES:
        Console(stderr=True).print(
            f"Warning: {len(train):,} train utterances are too few for a dev set of "
            f"{DEV_UTTERANCES:,}; its size is a tenth of them, {size:,}.",
            soft_wrap=True,
        )
    return {"train": train[size:], "dev": train[:size], "test": test}
