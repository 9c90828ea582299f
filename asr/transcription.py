"""A job over many recordings: which they are, what is done already, which process does what."""

import multiprocessing
import signal
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from glob import has_magic
from pathlib import Path
from typing import Any

import torch

import asr
from asr.bundle import write_atomically
from asr.errors import AsrError, AudioError, ConfigError, DataError
from asr.formats import FORMATS
from asr.parent import end_with_parent
from asr.recognizer import Recognizer, choose_device
from asr.transcript import Transcript

SUFFIXES = {".wav", ".flac", ".ogg", ".oga", ".opus", ".mp3", ".aif", ".aiff"}
# What a process is handed at a time: about ten minutes of speech as WAV, or so many files.
_SHARE_BYTES, _SHARE_FILES = 20e6, 64


@dataclass(frozen=True)
class Task:
    """A recording and the file that its transcript goes to, if it goes to a file."""

    recording: Path
    out: Path | None


def find_tasks(arguments: list[str], out_dir: Path | None, format: str) -> list[Task]:
    """The recordings that files, folders (with all below) and globs stand for, each once.

    A transcript's place below `out_dir` is its recording's below the folder, or the part without
    wildcards, that was given. Raises
    DataError where a folder or a glob holds no recording, ConfigError where two recordings would
    be written to one file.
    """
    places: dict[Path, Path] = {}
    for argument in arguments:
        for recording, place in _found(argument):
            places.setdefault(recording, place.with_suffix(f".{format}"))
    if out_dir is None:
        return [Task(recording, None) for recording in places]
    taken: dict[Path, Path] = {}
    for recording, place in places.items():
        if (other := taken.setdefault(place, recording)) != recording:
            raise ConfigError(
                f"{other} and {recording} would both be written to {out_dir / place}: give the "
                "folder that holds them, or rename one"
            )
    return [Task(recording, out_dir / place) for recording, place in places.items()]


def _found(argument: str) -> list[tuple[Path, Path]]:
    """What an argument stands for: recordings, and where each is below what was given."""
    path = Path(argument)
    if path.is_dir():
        below = sorted(p for p in path.rglob("*") if p.suffix.lower() in SUFFIXES and p.is_file())
        if not below:
            raise DataError(
                f"{argument}: no recording in this folder ({', '.join(sorted(SUFFIXES))}): give "
                "another"
            )
        return [(p, p.relative_to(path)) for p in below]
    if has_magic(argument) and not path.exists():
        root = next(p for p in path.parents if not has_magic(str(p)))
        matches = sorted(p for p in root.glob(str(path.relative_to(root))) if p.is_file())
        if not matches:
            raise DataError(f"{argument}: no file matches: check the pattern")
        return [(p, p.relative_to(root)) for p in matches]
    return [(path, Path(path.name))]


def transcribe_all(
    tasks: list[Task],
    bundle: Path,
    device: str,
    int8: bool,
    changes: dict[str, Any],
    jobs: int,
    on_progress: Callable[[float], object],
) -> Iterator[tuple[Task, Transcript | AudioError]]:
    """The tasks in order with their results, by `jobs` processes; those with `out` are written.

    `changes` are of the bundle's search. `on_progress` is told how many recordings are done. A
    written file is whole: it was renamed to its place. Raises BundleError and ConfigError before
    any work, AsrError where a process dies.
    """
    if jobs == 1 or len(tasks) == 1:
        recognizer = asr.load(bundle, device, int8)
        yield from _transcribe(recognizer, tasks, changes, on_progress)
        return
    choose_device(device)
    asr.load(bundle, "cpu")  # what is wrong with it is told once
    context = multiprocessing.get_context("spawn")
    numbers = context.Queue()
    for number in range(jobs):
        numbers.put(number)
    threads = max(1, torch.get_num_threads() // jobs)
    pool = ProcessPoolExecutor(jobs, context, _start, (bundle, device, int8, numbers, threads))
    ours = pool._processes  # not the caller's other children; Python 3.14 has terminate_workers
    try:
        futures = deque(pool.submit(_transcribe_share, share, changes) for share in _shares(tasks))
        n_done = 0
        while futures:
            results = futures.popleft().result()
            n_done += len(results)
            on_progress(n_done)
            yield from results
    except BrokenProcessPool as error:
        raise AsrError(
            "one of the processes died (out of memory?): start again with fewer --jobs, what "
            "--out holds is not done twice"
        ) from error
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
        for process in list(ours.values()):
            process.terminate()


_Result = tuple[Task, Transcript | AudioError]


def _shares(tasks: list[Task]) -> Iterator[list[Task]]:
    share: list[Task] = []
    n_bytes = 0
    for task in tasks:
        share.append(task)
        n_bytes += task.recording.stat().st_size if task.recording.is_file() else 0
        if n_bytes >= _SHARE_BYTES or len(share) == _SHARE_FILES:
            yield share
            share, n_bytes = [], 0
    if share:
        yield share


def _transcribe(
    recognizer: Recognizer,
    tasks: list[Task],
    changes: dict[str, Any],
    on_progress: Callable[[float], object] = lambda _: None,
) -> Iterator[_Result]:
    search = recognizer.config.search.changed(changes)
    found = recognizer.transcribe_all((task.recording for task in tasks), search, on_progress)
    for task, result in zip(tasks, found, strict=True):
        if task.out and isinstance(result, Transcript):
            write_text(task.out, FORMATS[task.out.suffix[1:]](result))
        yield task, result


def write_text(path: Path, text: str) -> None:
    """A transcript's file, whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, lambda temporary: temporary.write_text(text, "utf-8"))


_recognizer: Recognizer  # of a process of the pool


def _start(
    bundle: Path, device: str, int8: bool, numbers: "multiprocessing.Queue[int]", threads: int
) -> None:
    """Make a process ready; GPUs are dealt out in turn. It ends with the process it works for."""
    global _recognizer  # noqa: PLW0603
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the terminal's Ctrl-C: the parent ends us
    end_with_parent()
    torch.set_num_threads(threads)
    number = numbers.get()
    if device in ("auto", "cuda") and torch.cuda.is_available():
        device = f"cuda:{number % torch.cuda.device_count()}"
    _recognizer = asr.load(bundle, device, int8)


def _transcribe_share(tasks: list[Task], changes: dict[str, Any]) -> list[_Result]:
    return list(_transcribe(_recognizer, tasks, changes))
