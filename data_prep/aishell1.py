"""AISHELL-1 (OpenSLR 33) as it lies on disk: a tree, or the archive of per-speaker archives.

Layout: `data_aishell/wav/{train,dev,test}/S????/*.wav` and
`data_aishell/transcript/aishell_transcript_v0.8.txt`, lines of `id word word …` in UTF-8. The words
are joined, as every recipe does; about 360 recordings have no line and are left out.
"""

import gzip
import shutil
import tarfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import IO, NamedTuple

from rich.console import Console
from rich.progress import track

from asr.errors import DataError
from data_prep.corpus_writer import LeftOut, Report, Utterance, compare_with_published, write_corpus

SPLITS = ("train", "dev", "test")
TRANSCRIPT = "transcript/aishell_transcript_v0.8.txt"
ARCHIVE = "data_aishell.tgz"

# Utterances and speakers with a transcript, as published, and the archive's bytes.
FULL = {"train": (120_098, 340), "dev": (14_326, 40), "test": (7_176, 20)}
FULL_SIZE = 15_582_913_665

# The published archives have 142,330 members together.
MOST_MEMBERS = 200_000


class _Line(NamedTuple):
    """A line of the transcript; `text` is None where it is not UTF-8."""

    where: str
    text: str | None


def prepare(corpus: Path, out: Path, *, jobs: int | None = None) -> Report:
    """Write the cuts and the report of the AISHELL-1 at `corpus` to `out`.

    `corpus` is data_aishell, the folder that holds it, or data_aishell.tgz. Archives are extracted
    to `<out>/data_aishell`; an interrupted extraction continues. Raises DataError where `corpus` is
    not AISHELL-1, or an archive is damaged or tries to write elsewhere.
    """
    extracted = out / "data_aishell"
    source = _locate(corpus)
    if source.is_file():
        _extract_corpus(source, extracted)
        trees = [extracted]
    else:
        trees = [source]
        if _extract_speakers(source, extracted) and extracted.resolve() != source.resolve():
            trees.append(extracted)
    lines, dropped = _read_transcript(trees[0] / TRANSCRIPT)
    recordings = {split: _recordings(trees, split) for split in SPLITS}
    splits = {
        split: _utterances(paths, split, lines, dropped) for split, paths in recordings.items()
    }
    heard = {_key(path.stem) for paths in recordings.values() for path in paths}
    dropped.extend(
        LeftOut(key, "", line.where, "no_recording")
        for key, line in lines.items()
        if key not in heard
    )
    report = write_corpus(splits, out, corpus="aishell1", left_out=dropped, jobs=jobs)
    figures = {}
    for split, (utterances, speakers) in FULL.items():
        found = report.splits[split]
        figures[f"{split} utterances"] = (found.utterances, utterances)
        figures[f"{split} speakers"] = (found.speakers, speakers)
    compare_with_published(figures)
    return report


def _locate(corpus: Path) -> Path:
    """Return the data_aishell folder or the archive that `corpus` means."""
    for path in (corpus, corpus / "data_aishell"):
        if (path / "wav").is_dir() and (path / TRANSCRIPT).is_file():
            return path
    for path in (corpus, corpus / ARCHIVE):
        if path.is_file():
            return path
    raise DataError(
        f"{corpus}: is not AISHELL-1; give the folder that holds wav/ and {TRANSCRIPT}, "
        f"the one above it, or {ARCHIVE}."
    )


def _read_transcript(path: Path) -> tuple[dict[str, _Line], list[LeftOut]]:
    """Return the lines by utterance id, and those whose id stood before."""
    lines: dict[str, _Line] = {}
    repeated = []
    content = path.read_bytes().removeprefix(b"\xef\xbb\xbf")
    for number, line in enumerate(content.split(b"\n"), 1):
        if not line.strip():
            continue
        first, *rest = line.split(maxsplit=1)
        key, where = _key(first.decode("utf-8", "backslashreplace")), f"{path}:{number}"
        if key in lines:
            repeated.append(LeftOut(key, "", where, "duplicate_line"))
            continue
        try:
            lines[key] = _Line(where, b"".join(rest).decode("utf-8"))
        except UnicodeDecodeError:
            lines[key] = _Line(where, None)
    return lines, repeated


def _recordings(trees: list[Path], split: str) -> list[Path]:
    found = (path for tree in trees for path in (tree / "wav" / split).glob("*/*"))
    # Files that macOS and a killed extraction leave beside the recordings begin with a dot.
    wavs = (p for p in found if p.suffix.lower() == ".wav" and not p.name.startswith("."))
    return sorted(wavs, key=lambda path: (path.parent.name, path.name))


def _utterances(
    paths: list[Path], split: str, lines: dict[str, _Line], dropped: list[LeftOut]
) -> list[Utterance]:
    """Pair recordings with their lines; those that find none go to `dropped`."""
    utterances = []
    for path in paths:
        key = _key(path.stem)
        line = lines.get(key)
        if line is None:
            dropped.append(LeftOut(key, split, str(path), "no_transcript"))
        elif line.text is None:
            dropped.append(LeftOut(key, split, line.where, "undecodable_transcript"))
        else:
            utterances.append(Utterance(key, path, line.text, path.parent.name.upper()))
    return utterances


def _key(name: str) -> str:
    """Return an utterance's id: the published ones have capitals only, some file systems none."""
    return name.upper()


def _extract_corpus(archive: Path, extracted: Path) -> None:
    """Extract data_aishell.tgz, its inner archives too, which never lie on disk themselves."""
    marks = extracted / ".extracted"
    _claim(archive, marks)
    if (marks / ARCHIVE).exists():
        return
    size = archive.stat().st_size
    if size != FULL_SIZE:
        Console(stderr=True).print(
            f"Warning: {archive} has {size:,} bytes, the published one {FULL_SIZE:,}; if this is "
            "not a copy of your own making, download it again.",
            soft_wrap=True,
        )
    with _open(archive) as tar:
        for member in track(
            _members(tar, archive), "extracting", None, console=Console(stderr=True)
        ):
            name = PurePosixPath(member.name)
            inside = extracted.joinpath(*name.parts[name.parts[0] == "data_aishell" :])
            content = tar.extractfile(member)
            assert content is not None
            if name.name.endswith((".tar.gz", ".tgz")):
                _extract_speaker(content, f"{archive}: {name}", name.name, extracted)
            else:
                _place(content, member.size, inside)
    (marks / ARCHIVE).touch()


def _claim(archive: Path, marks: Path) -> None:
    """Let one archive only fill the folder, since what is there already is kept unread."""
    owner, size = marks / "archive_size", str(archive.stat().st_size)
    if owner.exists() and owner.read_text() != size:
        raise DataError(
            f"{marks.parent}: was extracted from another archive than {archive}; remove it or "
            "choose another folder."
        )
    marks.mkdir(parents=True, exist_ok=True)
    partial = owner.with_suffix(".partial")
    partial.write_text(size)
    partial.replace(owner)


def _extract_speakers(tree: Path, extracted: Path) -> bool:
    """Extract a tree's S????.tar.gz whose speakers are not untarred; return whether it has any."""
    there = {path.name for split in SPLITS for path in (tree / "wav" / split).glob("*")}
    archives = sorted(
        path for path in (tree / "wav").glob("*.tar.gz") if path.name.split(".")[0] not in there
    )
    bar = Console(stderr=True)
    for archive in track(archives, "extracting", console=bar, disable=not archives):
        with archive.open("rb") as content:
            _extract_speaker(content, str(archive), archive.name, extracted)
    return bool(archives)


def _extract_speaker(content: IO[bytes], shown: str, name: str, extracted: Path) -> None:
    mark = extracted / ".extracted" / name
    if mark.exists():
        return
    with _open(shown, content) as tar:
        for member in _members(tar, shown):
            file = tar.extractfile(member)
            assert file is not None
            _place(file, member.size, extracted / "wav" / member.name)
    mark.parent.mkdir(parents=True, exist_ok=True)
    mark.touch()


@contextmanager
def _open(archive: Path | str, content: IO[bytes] | None = None) -> Iterator[tarfile.TarFile]:
    """Open an archive as a stream; DataError where it is damaged or the disk full."""
    try:
        with (
            content or Path(archive).open("rb") as file,
            gzip.GzipFile(fileobj=file) as unpacked,
            tarfile.open(fileobj=unpacked, mode="r|") as tar,
        ):
            yield tar
            # To tar, damage can look like the end; gzip's checksum, at the true end, tells.
            while unpacked.read(1 << 20):
                pass
    except (tarfile.TarError, EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise DataError(
            f"{archive}: is damaged or incomplete ({error}); download it again."
        ) from error
    except OSError as error:
        raise DataError(f"{archive}: cannot be extracted ({error}); free some space.") from error


def _members(tar: tarfile.TarFile, archive: Path | str) -> Iterator[tarfile.TarInfo]:
    """Yield the files of an archive; DataError at one that would reach outside its folder."""
    for number, member in enumerate(tar, 1):
        if number > MOST_MEMBERS:
            raise DataError(
                f"{archive}: holds more than {MOST_MEMBERS:,} files; it is not the published "
                "archive, so do not use it."
            )
        # Otherwise the archive remembers every member that it has passed.
        tar.members = []  # type: ignore[attr-defined]
        name = PurePosixPath(member.name)
        if name.is_absolute() or ".." in name.parts or not (member.isreg() or member.isdir()):
            raise DataError(
                f"{archive}: holds {member.name!r}, which is a link, a device or outside its "
                "folder; it is not the published archive, so do not use it."
            )
        if member.isreg() and not name.name.startswith("."):
            yield tarfile.data_filter(member, ".")


def _place(content: IO[bytes], size: int, path: Path) -> None:
    """Write a file whole or not at all; one that is there with that size is whole."""
    if path.is_file() and path.stat().st_size == size:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.partial")
    with partial.open("wb") as file:
        shutil.copyfileobj(content, file)
        if file.tell() != size:
            raise EOFError(f"{path.name} ends early")
    partial.replace(path)
