"""AISHELL-1 (OpenSLR 33): the extracted tree, or the archive of one archive per speaker.

Layout: `data_aishell/wav/{train,dev,test}/S????/*.wav` and
`data_aishell/transcript/aishell_transcript_v0.8.txt`, lines of `id word word …` in UTF-8. Words are
joined, as in every recipe; about 360 recordings without a line are left out.
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
from asr.runtime.files import remove_stale, temporary_beside
from data_prep.corpus_writer import LeftOut, Report, compare_with_published, write_corpus
from data_prep.cuts import Utterance

SPLITS = ("train", "dev", "test")
TRANSCRIPT = "transcript/aishell_transcript_v0.8.txt"
ARCHIVE = "data_aishell.tgz"

# Published numbers of utterances and speakers with a transcript.
PUBLISHED = {"train": (120_098, 340), "dev": (14_326, 40), "test": (7_176, 20)}
# The published archives have 142,330 members of 20 GB in all.
MAX_MEMBERS, MAX_BYTES = 200_000, 40_000_000_000
_DAMAGE = (tarfile.TarError, EOFError, zlib.error, gzip.BadGzipFile)
_HEADER_BYTES = 1 << 20  # of a header with a long name or other facts about a member


class _Line(NamedTuple):
    """A line of the transcript; `text` is None if it is not UTF-8."""

    where: str
    text: str | None


class _Member(tarfile.TarInfo):
    """A member of an archive; headers that take much memory are refused.

    tarfile itself would read a name of any length. Sparse files are refused before tarfile reads
    their map, which can have any length.
    """

    def _proc_member(self, tar: tarfile.TarFile) -> tarfile.TarInfo:
        if not (self.isreg() or self.isdir()) and self.size > _HEADER_BYTES:
            raise tarfile.ReadError(f"a header of {self.size:,} bytes")
        found: tarfile.TarInfo = super()._proc_member(tar)  # type: ignore[misc]
        return found

    def _refuse_sparse(self, *_: object) -> None:
        raise tarfile.ReadError("a sparse file")

    _proc_sparse = _proc_gnusparse_00 = _proc_gnusparse_01 = _proc_gnusparse_10 = _refuse_sparse

    def _apply_pax_info(self, pax_headers: dict[str, str], *rest: str) -> None:
        if any(key.startswith("GNU.sparse.") for key in pax_headers):
            self._refuse_sparse()
        super()._apply_pax_info(pax_headers, *rest)  # type: ignore[misc]


class _Unpacked:
    """The members and bytes unpacked so far from an archive and from the archives inside it."""

    def __init__(self) -> None:
        self.members = self.bytes = 0

    def add(self, archive: Path | str, size: int) -> None:
        """Count a member. Raises DataError if the archive cannot be the published one."""
        self.members, self.bytes = self.members + 1, self.bytes + size
        for count, most, what in (
            (self.members, MAX_MEMBERS, "files"),
            (self.bytes, MAX_BYTES, "bytes"),
        ):
            if count > most:
                raise DataError(
                    f"{archive}: holds more than {most:,} {what}, so it is not the published "
                    "archive: download it again"
                )


def prepare(corpus: Path, out: Path, *, jobs: int | None = None) -> Report:
    """Write cuts and a report of AISHELL-1 to `out`.

    `corpus` is data_aishell, the folder that holds it, or data_aishell.tgz. Archives are extracted
    to `<out>/data_aishell`; an interrupted extraction is continued. Raises DataError if `corpus` is
    not AISHELL-1, or an archive is damaged or would write elsewhere.
    """
    extracted = out / "data_aishell"
    source = _locate(corpus)
    for folder in extracted.glob("wav/*/*"):
        remove_stale(folder)
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
    recorded = {_key(path.stem) for paths in recordings.values() for path in paths}
    dropped.extend(
        LeftOut(key, "", line.where, "no_recording")
        for key, line in lines.items()
        if key not in recorded
    )
    report = write_corpus(splits, out, corpus="aishell1", left_out=dropped, jobs=jobs)
    counts = {}
    for split, (utterances, speakers) in PUBLISHED.items():
        found = report.splits[split]
        counts[f"{split} utterances"] = (found.utterances, utterances)
        counts[f"{split} speakers"] = (found.speakers, speakers)
    compare_with_published(counts)
    return report


def _locate(corpus: Path) -> Path:
    """Return the data_aishell folder or the archive at `corpus`. Raises DataError for neither."""
    for path in (corpus, corpus / "data_aishell"):
        if (path / "wav").is_dir() and (path / TRANSCRIPT).is_file():
            return path
    for path in (corpus, corpus / ARCHIVE):
        if path.is_file():
            return path
    raise DataError(
        f"{corpus}: is not AISHELL-1: give the folder that holds wav/ and {TRANSCRIPT}, its "
        f"parent, or {ARCHIVE}"
    )


def _read_transcript(path: Path) -> tuple[dict[str, _Line], list[LeftOut]]:
    """Return the lines by utterance id, and those whose id occurred before."""
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
    # Names of files that macOS or a killed extraction leaves begin with a dot.
    wavs = (p for p in found if p.suffix.lower() == ".wav" and not p.name.startswith("."))
    return sorted(wavs, key=lambda path: (path.parent.name, path.name))


def _utterances(
    paths: list[Path], split: str, lines: dict[str, _Line], dropped: list[LeftOut]
) -> list[Utterance]:
    """Pair recordings with their lines; add those without one to `dropped`."""
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
    """Return an utterance's id in uppercase, as published; some file systems change the case."""
    return name.upper()


def _extract_corpus(archive: Path, extracted: Path) -> None:
    """Extract data_aishell.tgz and its inner archives, which are never written to the disk."""
    marks = extracted / ".extracted" / str(archive.stat().st_size)
    if any(path != marks for path in marks.parent.glob("*")):
        raise DataError(
            f"{extracted}: was extracted from another archive than {archive}: remove it or choose "
            "another folder"
        )
    marks.mkdir(parents=True, exist_ok=True)
    if (marks / ARCHIVE).exists():
        return
    unpacked = _Unpacked()
    with _open(archive) as tar:
        members = _members(tar, archive, unpacked)
        for member in track(members, "extracting", None, console=Console(stderr=True)):
            name = PurePosixPath(member.name)
            content = tar.extractfile(member)
            assert content is not None
            if name.name.endswith((".tar.gz", ".tgz")):
                mark = marks / name.name
                _extract_speaker(content, f"{archive}: {name}", extracted, mark, unpacked)
            else:
                inside = name.parts[name.parts[0] == "data_aishell" :]
                _write_file(content, member.size, extracted.joinpath(*inside))
    (marks / ARCHIVE).touch()


def _extract_speakers(tree: Path, extracted: Path) -> bool:
    """Extract archives S????.tar.gz of speakers without a folder; return whether any exist."""
    there = {path.name for split in SPLITS for path in (tree / "wav" / split).glob("*")}
    found = sorted((tree / "wav").glob("*.tar.gz"))
    archives = [path for path in found if path.name.split(".")[0] not in there]
    marks = extracted / ".extracted" / "speakers"
    bar, unpacked = Console(stderr=True), _Unpacked()
    for archive in track(archives, "extracting", console=bar, disable=not archives):
        with archive.open("rb") as content:
            _extract_speaker(content, str(archive), extracted, marks / archive.name, unpacked)
    return bool(archives)


def _extract_speaker(
    content: IO[bytes], archive: str, extracted: Path, mark: Path, unpacked: _Unpacked
) -> None:
    """Extract a speaker's archive unless its mark exists."""
    if mark.exists():
        return
    with _open(archive, content) as tar:
        for member in _members(tar, archive, unpacked):
            file = tar.extractfile(member)
            assert file is not None
            _write_file(file, member.size, extracted / "wav" / member.name)
    mark.parent.mkdir(parents=True, exist_ok=True)
    mark.touch()


@contextmanager
def _open(archive: Path | str, content: IO[bytes] | None = None) -> Iterator[tarfile.TarFile]:
    """Open an archive as a stream; DataError if it is damaged or the disk is full."""
    try:
        with (
            content or Path(archive).open("rb") as file,
            gzip.GzipFile(fileobj=file) as unpacked,
            tarfile.open(fileobj=unpacked, mode="r|", tarinfo=_Member) as tar,
        ):
            yield tar
            # Damage can look like the end to tar; gzip's checksum at the true end detects it.
            while unpacked.read(1 << 20):
                if unpacked.tell() > MAX_BYTES:
                    raise tarfile.ReadError(f"more than {MAX_BYTES:,} bytes")
    except (*_DAMAGE, RecursionError, ValueError) as error:  # the last two at hostile headers
        raise DataError(
            f"{archive}: is damaged or incomplete ({error}): download it again"
        ) from error
    except OSError as error:
        raise DataError(f"{archive}: cannot be extracted ({error}): free some space") from error


def _members(
    tar: tarfile.TarFile, archive: Path | str, unpacked: _Unpacked
) -> Iterator[tarfile.TarInfo]:
    """Yield the files of an archive; DataError at one that would be written outside its folder."""
    for member in tar:
        unpacked.add(archive, member.size)
        # The archive would keep every member in memory.
        tar.members = []  # type: ignore[attr-defined]
        name = PurePosixPath(member.name)
        if name.is_absolute() or ".." in name.parts or not (member.isreg() or member.isdir()):
            raise DataError(
                f"{archive}: holds {member.name!r}, a link, a device or a file outside its folder, "
                "so it is not the published archive: download it again"
            )
        if member.isreg() and not name.parts:
            reason = f"{archive}: holds a file named {member.name!r}, so it is not the published"
            raise DataError(f"{reason} archive: download it again")
        if member.isreg() and not name.name.startswith("."):
            yield tarfile.data_filter(member, ".")


def _write_file(content: IO[bytes], size: int, path: Path) -> None:
    """Write a file completely or not at all; keep one that has the right size."""
    if path.is_file() and path.stat().st_size == size:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = temporary_beside(path)
    try:
        with partial.open("wb") as file:
            shutil.copyfileobj(content, file)
            if file.tell() != size:
                raise EOFError(f"{path.name} ends early")
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)
