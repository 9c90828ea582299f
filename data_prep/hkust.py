"""HKUST Mandarin telephone conversations: LDC2005S15 (speech) and LDC2005T32 (transcripts).

A call is a two-channel SPHERE file at 8 kHz and a GBK text of lines `start end A: text`, times in
seconds; side A is channel 1. As in other toolkits' recipes, the 24 calls of the LDC's dev
folder are the test set, and the first 4,001 of the sorted train utterances are the dev set (a tenth
of a smaller corpus). Cuts have the transcript's times; only ids are rounded, to centiseconds.
"""

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from rich.console import Console

from asr.errors import DataError
from asr.normalization import normalize_text
from data_prep.corpus_writer import LeftOut, Report, compare_with_published, write_corpus
from data_prep.cuts import Utterance

DEV_UTTERANCES = 4_001

PUBLISHED = {
    "calls": 897,
    "train and dev utterances": 197_387,
    "test utterances": 5_413,
    "test characters": 56_154,
}


def _unwrap(brackets: re.Match[str]) -> str:
    """Return what is in (( )); where nothing closes it, return the rest of the line as it is."""
    return brackets[1] if brackets[0].endswith("))") else brackets[0]


# The rules of Kaldi's recipe in its order (capitals, its eighth rule, and spaces are left to
# `normalize_text`), then two more: other tags in braces, brackets (Latin letters only) or angle
# brackets are removed, and so is all punctuation, full-width too, but an apostrophe in a word. Each
# reads a line once: none looks for the end of a tag again from every beginning.
RULES = tuple(
    (re.compile(pattern), replacement)
    for pattern, replacement in (
        (r'<foreign language="[^">]*">', " "),
        (r"</foreign>", " "),
        (r"\A(?>(.*?)<noise>)(.+)</noise>", r"\1\2"),
        (r"\(\((.*?)(?:\)\)|\Z)", _unwrap),
        (r"(?<!\S)(?:\{(?:breath|cough|sneeze|lipsmack|laugh)\}|<noise>)(?!\S)", ""),
        (r"[.,?+-]+", ""),
        (r"[~%](?=\S)", ""),
        (r"\{[^{}]*\}|\[[A-Za-z ]*\]|<[^<>]*>", " "),
        (r"(?<![A-Za-z])'|'(?![A-Za-z])|[^\w\s']|_", ""),
    )
)

_CALL = re.compile(r"#\s*(\w+_A\w+_B\w+)\s*")
_TIME = r"(\d{1,9}(?:\.\d{0,9})?)"  # seconds
_LINE = re.compile(rf"{_TIME}\s+{_TIME}\s+([AB]):(.*)", re.DOTALL)


class _Files(NamedTuple):
    """Files on the disk by split and call (uppercase), and those left out."""

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
        """Return start and end, rounded as awk does in other toolkits' recipes."""
        return round(100 * self.start + 0.5), round(100 * self.end + 0.5)

    @property
    def id(self) -> str:
        """Return the id that other toolkits' recipes use."""
        return "{}-{}-{:06}-{:06}".format(self.call, self.side, *self.centiseconds)


def prepare(corpus: Path, out: Path, *, jobs: int | None = None) -> Report:
    """Write cuts and a report of the HKUST corpus, anywhere below `corpus`, to `out`.

    Folders audio/{train,dev} and trans/{train,dev} may have any letter case. Raises DataError if
    there are none, or if no utterance can be used.
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
    compare_with_published({name: (found[name], PUBLISHED[name]) for name in PUBLISHED})
    return report


def normalize(text: str) -> str:
    """Return the words of a line of the transcripts; empty if it has none."""
    for pattern, replacement in RULES:
        text = pattern.sub(replacement, text)
    return normalize_text(text)


def _find(corpus: Path) -> _Files:
    files = _Files({}, {}, [])
    kinds = {("audio", ".sph"): files.recordings, ("trans", ".txt"): files.transcripts}
    for path in _walk(corpus):
        folders = "/".join(path.relative_to(corpus).parts[:-1]).lower()
        found = re.search(r"(?:^|/)(audio|trans)/(train|dev)(?:/|$)", folders)
        kind = kinds.get((found[1], path.suffix.lower())) if found else None
        if found is None or kind is None:
            continue
        if kind.setdefault((found[2], path.stem.upper()), path) != path:
            files.dropped.append(LeftOut(path.stem, "", str(path), "duplicate_file"))
    if not files.recordings or not files.transcripts:
        missing = "audio/train/*.sph" if files.transcripts else "trans/train/*.txt"
        raise DataError(
            f"{corpus}: is not HKUST, since it has no {missing}: give the folder that holds both "
            "LDC2005S15 and LDC2005T32"
        )
    return files


def _walk(folder: Path) -> Iterator[Path]:
    """Yield all files in order; links are followed, but no folder is visited twice."""
    visited = set()
    for here, folders, names in os.walk(folder, followlinks=True):
        real = os.path.realpath(here)
        if real in visited:
            folders.clear()
            continue
        visited.add(real)
        folders.sort()
        yield from (Path(here, name) for name in sorted(names))


def _utterances(files: _Files, split: str) -> list[Utterance]:
    """Return the utterances of the LDC's train or dev folder, sorted by id."""
    named, kept, transcribed = {"train": "train", "dev": "test"}[split], [], set()
    for key, path in files.transcripts.items():
        if key[0] != split:
            continue
        for segment in _read_transcript(path, named, files.dropped):
            recording = files.recordings.get((split, segment.call.upper()))
            transcribed.add((split, segment.call.upper()))
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
        if key[0] == split and key not in transcribed
    )
    return sorted(kept, key=lambda utterance: utterance.id.encode())


def _reason(segment: _Segment, split: str, text: str, recording: Path | None) -> str:
    """Return why a segment is left out; empty if it is used."""
    if split == "train" and re.search("[AB]:", segment.text):
        return "broken_line"  # the release has two lines in one
    if segment.centiseconds[0] >= segment.centiseconds[1]:
        return "empty_segment"
    if recording is None:
        return "no_recording"
    return "" if text else "empty_transcript"


def _read_transcript(path: Path, split: str, dropped: list[LeftOut]) -> Iterator[_Segment]:
    """Yield the lines of one call; add those that cannot be read to `dropped`."""
    try:
        content = path.read_bytes()
    except OSError:
        dropped.append(LeftOut(path.stem, split, str(path), "unreadable_transcript"))
        return
    # A file with a BOM was converted by its owner. No GBK character contains a newline.
    encoding = "utf-8" if content.startswith(b"\xef\xbb\xbf") else "gbk"
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
            f"{DEV_UTTERANCES:,}: it gets a tenth of them, {size:,}",
            soft_wrap=True,
        )
    return {"train": train[size:], "dev": train[:size], "test": test}
