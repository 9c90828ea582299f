"""A job that many machines do together, without a coordinator: the processes of one of them.

See `asr.transcription.leases` for how they agree. The parent loads no model: it starts the
processes that do, and starts another where one dies, as by a recording that no memory can hold.
"""

import asyncio
import logging
import multiprocessing
import os
import signal
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Protocol

from asr.errors import AsrError, AudioError
from asr.runtime.load import follow_load
from asr.runtime.processes import end_with_parent
from asr.transcription.attempts import Failure, Output, Share
from asr.transcription.jobs import Task
from asr.transcription.leases import Worker, as_buckets
from asr.transcription.shares import Job, JobStore, announce, failures
from asr.transcription.writers import FORMATS

if TYPE_CHECKING:
    from multiprocessing.process import BaseProcess

    from asr.transcription.recognizer import Recognizer
    from asr.transcription.transcript import Transcript

log = logging.getLogger(__name__)

# So many processes that die in turn, without a finished share between, end the job. A share with a
# recording that kills its process ends three of them, and only such shares may be left.
DEATHS = 30
ENDING = 10.0  # seconds for processes that are told to end


@dataclass(frozen=True)
class Work:
    """What each process is given."""

    job: Job
    out: str
    format: str
    bundle: Path
    device: str
    int8: bool
    changes: Mapping[str, object]
    threads: int


class Crew(Protocol):
    """The workers of one machine, or of a cluster."""

    def watch(self) -> Iterator[int]:
        """Yield how many recordings are done here, until the workers have come to the end."""

    def end(self) -> None:
        """End the workers, which give back what they have claimed."""


def transcribe_shared(work: Work, crew: Crew, on_progress: Callable[[float], object]) -> list[str]:
    """Work until all shares are done, here or elsewhere; return why recordings have no transcript.

    `on_progress` gets the number of recordings that the crew has done. Raises what a process
    raises, and AsrError where they die again and again.
    """
    announce(work.job, work.out)
    with _ended_by_signals():
        try:
            for n_done in crew.watch():
                on_progress(n_done)
        finally:
            crew.end()
    return [
        reason if reason.startswith(name := str(task.recording)) else f"{name}: {reason}"
        for task, reason in failures(work.job, work.out)
    ]


class LocalCrew:
    """Processes of this machine, `jobs` of them."""

    def __init__(self, work: Work, jobs: int) -> None:
        self._work, self._jobs = work, jobs
        self._context = multiprocessing.get_context("spawn")
        self._processes: dict[Connection, tuple[int, BaseProcess]] = {}

    def _start(self, index: int) -> None:
        """Start a process; the index chooses its GPU."""
        ours, theirs = self._context.Pipe(duplex=False)
        process = self._context.Process(target=_run, args=(self._work, index, theirs))
        process.start()
        theirs.close()
        self._processes[ours] = index, process

    def watch(self) -> Iterator[int]:
        """Yield how many recordings are done here, until all processes have come to the end."""
        for index in range(self._jobs):
            self._start(index)
        n_done, n_deaths = 0, 0
        while self._processes:
            for pipe in wait(list(self._processes)):
                assert isinstance(pipe, Connection)
                try:
                    told = pipe.recv()
                except (EOFError, OSError):
                    index, process = self._processes.pop(pipe)
                    process.join()
                    if process.exitcode == 0:
                        continue
                    n_deaths += 1
                    if n_deaths >= DEATHS:
                        raise AsrError(
                            f"{n_deaths} processes died in turn (out of memory?): start again "
                            "with fewer --jobs, what is done is not done again"
                        ) from None
                    log.warning("a process died (exit code %s): another starts", process.exitcode)
                    self._start(index)
                    continue
                if isinstance(told, Exception):
                    raise told
                n_done, n_deaths = n_done + told, 0
                yield n_done

    def end(self) -> None:
        """End the processes, which give back what they have claimed."""
        left = [process for _, process in self._processes.values()]
        for process in left:
            process.terminate()
        for process in left:
            process.join(ENDING)
            process.kill()


@contextmanager
def _ended_by_signals() -> Iterator[None]:
    """Treat SIGTERM, which a machine gets before it is taken away, as Ctrl-C."""

    def interrupt(number: int, _: FrameType | None) -> None:
        raise KeyboardInterrupt(number)

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _run(work: Work, index: int, pipe: Connection) -> None:
    """Work in a process of its own."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C: the parent ends this process
    end_with_parent()
    code = 0
    try:
        asyncio.run(_work_until_told(work, index, pipe))
    except asyncio.CancelledError:
        code = 1
    except AsrError as error:
        pipe.send(error)
        code = 1
    pipe.close()
    os._exit(code)  # a thread may still decode, which would be waited for


async def _work_until_told(work: Work, index: int, pipe: Connection) -> None:
    task = asyncio.current_task()
    assert task
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    await work_on(work, index, lambda share: pipe.send(len(share.outputs)))


async def work_on(work: Work, index: int, on_share: Callable[[Share], object]) -> None:
    """Work on a job in this process, on one of the GPUs in turn, until all of it is done."""
    decode = _Decoder(work, index)
    await decode.load()
    store = JobStore(work.out, work.job.name)
    worker = Worker(store, decode, on_share=on_share)
    try:
        await worker.run(as_buckets(work.job.shares))
    except OSError as error:
        raise AsrError(
            f"{work.out}: {error.strerror or error}: start again later, what is done is not done "
            "again"
        ) from error


class _Decoder:
    """Decodes the recordings of shares in a thread, so that signs of life are sent meanwhile."""

    def __init__(self, work: Work, index: int) -> None:
        self._work, self._index, self._thread = work, index, ThreadPoolExecutor(1)
        self._recognizer: Recognizer

    async def load(self) -> None:
        """Load the model."""
        await asyncio.get_running_loop().run_in_executor(self._thread, self._load)

    def _load(self) -> None:
        import torch

        from asr.bundle import Bundle
        from asr.transcription.recognizer import Recognizer

        torch.set_num_threads(self._work.threads)
        follow_load()
        device = self._work.device
        if device in ("auto", "cuda") and torch.cuda.is_available():
            device = f"cuda:{self._index % torch.cuda.device_count()}"
        self._recognizer = Recognizer(Bundle.load(self._work.bundle), device, self._work.int8)

    async def __call__(
        self, share: Share, items: Sequence[int]
    ) -> AsyncIterator[tuple[int, Output | Failure]]:
        """Yield what came of each recording (see `attempts.Decode`)."""
        options = self._recognizer.config.decoding.changed(self._work.changes)
        tasks = [self._work.job.tasks[share.outputs[item]] for item in items]
        found = self._recognizer.transcribe_all((task.source for task in tasks), options)
        loop = asyncio.get_running_loop()
        for item, task in zip(items, tasks, strict=True):
            result = await loop.run_in_executor(self._thread, next, found)
            yield item, self._outcome(task, result)

    def _outcome(self, task: Task, result: "Transcript | AudioError") -> Output | Failure:
        if isinstance(result, AudioError):
            return Failure(str(result))
        if self._work.format != "json":  # a JSON transcript holds them
            for warning in result.warnings:
                log.warning("%s", task.named(warning))
        return Output(FORMATS[self._work.format](result).encode(), result.duration)
