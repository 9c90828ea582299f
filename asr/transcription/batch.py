"""A job over many recordings, by several processes, that continues where it was interrupted."""

import multiprocessing
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import BrokenExecutor
from pathlib import Path

import torch

from asr.bundle import Bundle
from asr.errors import AsrError, AudioError
from asr.runtime.devices import choose_device
from asr.runtime.load import follow_load
from asr.runtime.processes import process_pool
from asr.transcription.jobs import Task, in_shares, is_long, write_transcript
from asr.transcription.recognizer import Recognizer
from asr.transcription.transcript import Transcript
from asr.transcription.writers import FORMATS

Result = tuple[Task, Transcript | AudioError]
_MOST_JOBS = 8  # where no number is given: each holds a model and libraries in memory


def choose_jobs(tasks: Iterable[Task], device: str) -> int:
    """Return the default number of processes: one per thread of a CPU, if there is much to do.

    The matrices of a small model are too small for several threads, and a process takes seconds to
    start. Raises ConfigError where there is no such device.
    """
    if choose_device(device).type != "cpu" or not is_long(tasks):
        return 1
    return min(torch.get_num_threads(), _MOST_JOBS)


def transcribe_all(
    tasks: list[Task],
    bundle: Path,
    device: str,
    int8: bool,
    changes: Mapping[str, object],
    jobs: int | None,
    on_progress: Callable[[float], object],
    speed: float = 1.0,
) -> Iterator[Result]:
    """Yield the tasks in order with their results, and write those with `out`.

    `jobs` processes do it, or fewer where there is little to do. `changes` override the bundle's
    decoding options. `on_progress` gets the number of recordings that are done. `speed` is that of
    `Recognizer.transcribe_all`. Files are written atomically.
    Raises BundleError and ConfigError before any work, AsrError where a process dies.
    """
    jobs = jobs or choose_jobs(tasks, device)
    if jobs == 1 or len(tasks) <= 1:
        recognizer = Recognizer(Bundle.load(bundle), device, int8)
        yield from _transcribe(recognizer, tasks, changes, speed, on_progress)
        return
    choose_device(device)
    Bundle.load(bundle)  # its errors are reported once, not by each process
    shares = list(in_shares(tasks))
    jobs = min(jobs, len(shares))
    context = multiprocessing.get_context("spawn")
    threads = max(1, torch.get_num_threads() // jobs)
    try:
        with process_pool(jobs, context, _start, bundle, device, int8, threads) as pool:
            futures = deque(pool.submit(_transcribe_share, s, changes, speed) for s in shares)
            n_done = 0
            while futures:
                results = futures.popleft().result()
                n_done += len(results)
                on_progress(n_done)
                yield from results
    except BrokenExecutor as error:
        raise AsrError(
            "one of the processes died (out of memory?): start again with fewer --jobs, recordings "
            "that --out holds are skipped"
        ) from error


def _transcribe(
    recognizer: Recognizer,
    tasks: list[Task],
    changes: Mapping[str, object],
    speed: float,
    on_progress: Callable[[float], object] = lambda _: None,
) -> Iterator[Result]:
    options = recognizer.config.decoding.changed(changes)
    sources = (task.source for task in tasks)
    found = recognizer.transcribe_all(sources, options, on_progress, speed=speed)
    for task, result in zip(tasks, found, strict=True):
        failure = None
        if task.out and isinstance(result, Transcript):
            failure = write_transcript(task, FORMATS[task.out.suffix[1:]](result))
        yield task, failure or result


_recognizer: Recognizer  # of a process of the pool


def _start(index: int, bundle: Path, device: str, int8: bool, threads: int) -> None:
    """Prepare a process, on one of the GPUs in turn."""
    global _recognizer  # noqa: PLW0603
    torch.set_num_threads(threads)
    follow_load()
    if device in ("auto", "cuda") and torch.cuda.is_available():
        device = f"cuda:{index % torch.cuda.device_count()}"
    _recognizer = Recognizer(Bundle.load(bundle), device, int8)


def _transcribe_share(
    tasks: list[Task], changes: Mapping[str, object], speed: float
) -> list[Result]:
    return list(_transcribe(_recognizer, tasks, changes, speed))
