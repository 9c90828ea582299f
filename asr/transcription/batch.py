"""A job over many recordings, spread over processes, that resumes where it was interrupted."""

import multiprocessing
import signal
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any

import torch

from asr.bundle import Bundle
from asr.errors import AsrError, AudioError
from asr.runtime.devices import choose_device
from asr.runtime.processes import end_with_parent
from asr.transcription.jobs import Task, write_text
from asr.transcription.recognizer import Recognizer
from asr.transcription.transcript import Transcript
from asr.transcription.writers import FORMATS

# What a process is handed at a time: about ten minutes of speech as WAV, or so many files.
_SHARE_BYTES, _SHARE_FILES = 20e6, 64


def transcribe_all(
    tasks: list[Task],
    bundle: Path,
    device: str,
    int8: bool,
    changes: dict[str, Any],
    jobs: int,
    on_progress: Callable[[float], object],
) -> Iterator[tuple[Task, Transcript | AudioError]]:
    """Yield the tasks in order with their results, by `jobs` processes; those with `out` are written.

    `changes` are of the bundle's decoding options. `on_progress` gets the number of recordings that
    are done. A file appears whole or not at all. Raises BundleError and ConfigError before
    any work, AsrError where a process dies.
    """
    if jobs == 1 or len(tasks) == 1:
        recognizer = Recognizer(Bundle.load(bundle), device, int8)
        yield from _transcribe(recognizer, tasks, changes, on_progress)
        return
    choose_device(device)
    Bundle.load(bundle)  # what is wrong with it is reported once, not by each process
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
    options = recognizer.config.decoding.changed(changes)
    found = recognizer.transcribe_all((task.recording for task in tasks), options, on_progress)
    for task, result in zip(tasks, found, strict=True):
        if task.out and isinstance(result, Transcript):
            write_text(task.out, FORMATS[task.out.suffix[1:]](result))
        yield task, result


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
    _recognizer = Recognizer(Bundle.load(bundle), device, int8)


def _transcribe_share(tasks: list[Task], changes: dict[str, Any]) -> list[_Result]:
    return list(_transcribe(_recognizer, tasks, changes))
