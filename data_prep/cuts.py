"""Turn utterances into the lines of a manifest (lhotse cuts), after a check of each recording.

Recordings on this machine are checked in threads. A recording by URL costs the time of a request
and work of the storage's client. So many are requested at a time: by several processes where there
are thousands, or by the nodes of a cluster.
"""

import json
import multiprocessing
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import BrokenExecutor, Executor, ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from itertools import chain
from multiprocessing import forkserver
from pathlib import Path, PurePath
from typing import NamedTuple, Protocol

import soundfile as sf
from lhotse import AudioSource, MonoCut, MultiCut, Recording, SupervisionSegment

from asr.data.cuts import CONVERTED_FROM
from asr.data.recordings import NOT_A_FILE
from asr.errors import AsrError, AudioError, DataError
from asr.normalization import normalize_text
from asr.runtime.processes import process_pool
from asr.runtime.storage import SMALL_BYTES, RemoteFile, read_small
from asr.runtime.threads import usable_cpus
from data_prep.probe import probe

_PER_TASK = 200  # utterances
_ROUNDED = 0.05  # seconds by which tables of rounded times go beyond a recording's end
_PER_CPU = 16  # requests at a time
_MANY = 5000  # utterances by URL that are worth the start of processes
_GROUP_BYTES = 1 << 26  # of recordings that a process holds in memory; it holds no large ones


@dataclass(frozen=True, slots=True)
class Utterance:
    """What a corpus says about one utterance.

    `start` and `seconds` are its part of a longer file. `channel` (from 0) is one of several;
    None is all of them, mixed as the recognizer mixes them. `confidence` belongs to a text that a
    model wrote; `converted_from` is the file of which `path` is a copy. The manifest has both.
    """

    id: str
    path: Path | RemoteFile
    text: str
    speaker: str
    start: float = 0.0
    seconds: float | None = None
    channel: int | None = None
    confidence: float | None = None
    converted_from: Path | None = None


class Line(NamedTuple):
    """A line of a manifest, the seconds of its cut, and the characters of the normalized text."""

    content: bytes
    seconds: float
    characters: frozenset[str]


Make = Callable[[Sequence[Utterance]], list[Line | str]]
Infos = dict[Path | RemoteFile, sf._SoundFileInfo | str]


class Cluster(Protocol):
    """An engine that checks recordings on other machines, which read them under the same names."""

    def map(
        self, function: Make, tasks: Iterable[Sequence[Utterance]]
    ) -> Iterator[list[Line | str]]:
        """Yield what a function returns for each task, in order."""


def make_lines(
    utterances: Sequence[Utterance],
    synthetic: bool,
    jobs: int | None,
    cluster: Cluster | None = None,
) -> Iterator[Line | str]:
    """Yield for each utterance its line, or the reason why it cannot be used.

    `jobs` recordings are checked at a time: by default one for each CPU, or `_PER_CPU` for each
    where some are given by URL. A cluster has a number of its own. Raises AsrError where storage
    does not answer or a process dies, DataError where a node of the cluster does not see a file.
    """
    if cluster:
        make = partial(_make_some, synthetic=synthetic, at_a_time=_PER_CPU)
        lines = chain.from_iterable(cluster.map(make, _tasks(utterances)))
        for one, line in zip(utterances, lines, strict=True):
            if line == "missing":  # they were found before
                raise DataError(
                    f"{one.path}: a node of the cluster does not see it: give a folder that all "
                    "nodes have under this path, or a URL"
                )
            yield line
        return
    n_remote = sum(isinstance(one.path, RemoteFile) for one in utterances)
    cpus = usable_cpus()
    jobs = jobs or cpus * (_PER_CPU if n_remote else 1)
    n_workers = jobs
    if n_remote:
        n_tasks = -(-len(utterances) // _PER_TASK)
        n_workers = min(jobs, cpus, n_tasks) if n_remote >= _MANY else 1
    make = partial(_make_some, synthetic=synthetic, at_a_time=-(-jobs // n_workers))
    with _pool(n_workers, n_remote >= _MANY) as pool:
        try:
            yield from chain.from_iterable(pool.map(make, _tasks(utterances)))
        except BrokenExecutor as error:
            raise AsrError(
                "one of the processes died (out of memory?): start again with fewer --jobs"
            ) from error


def _tasks(utterances: Sequence[Utterance]) -> Iterator[Sequence[Utterance]]:
    """Yield groups of utterances; neighbors of one recording are never in two groups."""
    first = 0
    while first < len(utterances):
        last = min(first + _PER_TASK, len(utterances))
        while last < len(utterances) and utterances[last].path == utterances[last - 1].path:
            last += 1
        yield utterances[first:last]
        first = last


def _pool(n: int, has_processes: bool) -> AbstractContextManager[Executor]:
    if not has_processes or n == 1:
        return ThreadPoolExecutor(n)
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__])
    _start_server()
    return process_pool(n, context)


def _start_server() -> None:
    """Start the process that others are forked from; it imports nothing from the working folder."""
    before = os.environ.get("PYTHONSAFEPATH")
    os.environ["PYTHONSAFEPATH"] = "1"
    try:
        forkserver.ensure_running()
    finally:
        del os.environ["PYTHONSAFEPATH"]
        if before is not None:
            os.environ["PYTHONSAFEPATH"] = before


def _make_some(
    utterances: Sequence[Utterance], synthetic: bool, at_a_time: int
) -> list[Line | str]:
    faults = [_fault(one) for one in utterances]
    usable = (one for one, fault in zip(utterances, faults, strict=True) if not fault)
    infos: Infos = {}  # a conversation holds hundreds of utterances: check it once
    group, n_bytes = list[RemoteFile](), 0
    for path in dict.fromkeys(one.path for one in usable):
        if not isinstance(path, RemoteFile):
            infos[path] = _info_or_reason(path)
            continue
        group, n_bytes = [*group, path], n_bytes + min(path.size, SMALL_BYTES)
        if n_bytes >= _GROUP_BYTES:
            infos |= _infos(group, at_a_time)
            group, n_bytes = [], 0
    infos |= _infos(group, at_a_time)
    return [
        fault or _line_or_reason(one, infos[one.path], synthetic)
        for one, fault in zip(utterances, faults, strict=True)
    ]


def _fault(utterance: Utterance) -> str:
    """Return why an utterance cannot be used, whatever its recording holds; "" if it can."""
    if not normalize_text(utterance.text, "keep"):
        return "empty_transcript"
    kind, source = _source(utterance.path)
    if kind == "file" and NOT_A_FILE.match(source):
        return "unusable_path"
    try:
        f"{utterance.id} {utterance.speaker} {source}".encode()
    except UnicodeEncodeError:
        return "undecodable_name"
    return ""


def _infos(files: Sequence[RemoteFile], at_a_time: int) -> Infos:
    contents = read_small(files, at_a_time)
    infos: Infos = {file: _info_or_reason(file, content) for file, content in contents.items()}
    others = [file for file in files if file not in contents]
    if others:
        with ThreadPoolExecutor(at_a_time) as pool:
            infos |= zip(others, pool.map(_info_or_reason, others), strict=True)
    return infos


def _info_or_reason(
    path: Path | RemoteFile, content: bytes | None = None
) -> sf._SoundFileInfo | str:
    try:
        return probe(path, content)
    except AudioError as error:
        return error.code


def _line_or_reason(
    utterance: Utterance, info: sf._SoundFileInfo | str, synthetic: bool
) -> Line | str:
    if isinstance(info, str):
        return info
    if (utterance.channel or 0) >= info.channels:
        return "missing_channel"
    rest = info.frames / info.samplerate - utterance.start
    seconds = rest if utterance.seconds is None else utterance.seconds
    if rest < seconds <= rest + _ROUNDED:
        seconds = rest
    if utterance.start < 0 or seconds <= 0 or seconds > rest:
        return "outside_recording"
    text = normalize_text(utterance.text, "keep")  # a recipe may keep the case
    cut = _cut(utterance, text, info, seconds, synthetic)
    content = json.dumps(cut.to_dict(), ensure_ascii=False).encode() + b"\n"
    return Line(content, cut.duration, frozenset(normalize_text(text).replace(" ", "")))


def _source(path: Path | RemoteFile) -> tuple[str, str]:
    """Return the type of a recording's source, as lhotse names it, and the source."""
    return ("url", path.url) if isinstance(path, RemoteFile) else ("file", str(path.absolute()))


def _cut(
    utterance: Utterance, text: str, info: sf._SoundFileInfo, seconds: float, synthetic: bool
) -> MonoCut | MultiCut:
    key, channels = utterance.id, list(range(info.channels))
    kind, source = _source(utterance.path)
    is_part = utterance.start > 0 or utterance.seconds is not None
    recording = Recording(
        id=PurePath(source).stem if is_part else key,
        sources=[AudioSource(kind, channels, source)],
        sampling_rate=info.samplerate,
        num_samples=info.frames,
        duration=info.frames / info.samplerate,
    )
    mixed = channels if utterance.channel is None and len(channels) > 1 else None
    channel = utterance.channel or 0
    supervision = SupervisionSegment(key, recording.id, 0.0, seconds, mixed or channel, text)
    supervision.speaker = utterance.speaker
    custom: dict[str, bool | float | str] = {"synthetic": True} if synthetic else {}
    if utterance.confidence is not None:
        custom["confidence"] = round(utterance.confidence, 4)
    if utterance.converted_from:
        custom[CONVERTED_FROM] = str(utterance.converted_from.absolute())
    supervision.custom = custom or None
    made = [supervision]
    if mixed:
        return MultiCut(key, utterance.start, seconds, mixed, made, recording=recording)
    return MonoCut(key, utterance.start, seconds, channel, made, recording=recording)
