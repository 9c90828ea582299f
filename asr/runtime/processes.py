"""Worker processes that end with their parent, even if it is killed, and pools of processes."""

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import BrokenExecutor, Executor, Future, ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerContext, SpawnContext
from multiprocessing.process import BaseProcess
from multiprocessing.reduction import ForkingPickler
from queue import SimpleQueue
from traceback import format_exc
from typing import TypeVar, cast

T = TypeVar("T")


@contextmanager
def process_pool(
    n: int,
    context: SpawnContext | ForkServerContext,
    start: Callable[..., object] | None = None,
    *arguments: object,
) -> Iterator[Executor]:
    """Yield a pool of `n` processes that end on leaving, or with this process.

    Each calls `start` first, with its number from 0 and the arguments. A task raises what its
    function does, or BrokenExecutor where its process died. Ctrl-C is for this process alone.

    Python's own pool of processes has one queue of results for all. It can wait without an end
    where a process dies in the middle of a result, or while others are started. Here each process
    has a pipe, which ends with it, and there are as many threads, each of which waits for one.
    """
    workers: list[_Worker] = []
    threads = _Threads(n)
    try:
        for i in range(n):
            ours, theirs = context.Pipe()
            begin = partial(start, i, *arguments) if start else None
            # Python terminates daemons, should it end while this pool is in use.
            process = context.Process(target=_work, args=(theirs, begin), daemon=True)
            process.start()
            theirs.close()
            workers.append(_Worker(process, ours))
            threads.free.put(workers[-1])
        yield threads
    finally:
        for worker in workers:
            worker.process.terminate()
        threads.shutdown(cancel_futures=True)
        for worker in workers:
            worker.process.join()
            worker.pipe.close()


class _Worker:
    """A process, and this process's end of its pipe."""

    def __init__(self, process: BaseProcess, pipe: Connection):
        self.process, self.pipe = process, pipe

    def run(self, task: Callable[[], T]) -> T:
        """Return what the task returns in the process, or raise what it raises there."""
        try:
            self.pipe.send(task)
            result, failure = self.pipe.recv()
        except (EOFError, OSError) as error:
            raise BrokenExecutor("a process died") from error
        if failure is not None:
            raise failure
        return cast(T, result)


class _Threads(ThreadPoolExecutor):
    """Threads, each of which has a task done by a process that is free."""

    def __init__(self, n: int):
        super().__init__(n)
        self.free = SimpleQueue[_Worker]()

    def submit(self, fn: Callable[..., T], /, *args: object, **kwargs: object) -> Future[T]:
        """Start a task; `map` calls this too."""
        return super().submit(self._run, partial(fn, *args, **kwargs))

    def _run(self, task: Callable[[], T]) -> T:
        worker = self.free.get()
        try:
            return worker.run(task)
        finally:
            self.free.put(worker)


def _work(pipe: Connection, begin: Callable[[], object] | None) -> None:
    """Do the tasks that come through the pipe, until its other end is closed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent ends this process
    end_with_parent()
    if begin:
        begin()
    while True:
        try:
            task = pipe.recv()
        except EOFError:
            return
        pipe.send_bytes(_answer(task))


def _answer(task: Callable[[], object]) -> bytes:
    """Return what a task returns and what it raises, pickled."""
    try:
        return bytes(ForkingPickler.dumps((task(), None)))
    except BaseException as error:
        error.add_note(format_exc())  # for --debug: a pickled error has no traceback
        try:
            return bytes(ForkingPickler.dumps((None, error)))
        except Exception:  # it cannot be pickled
            return bytes(ForkingPickler.dumps((None, RuntimeError(format_exc()))))


def end_with_parent() -> None:
    """Start a thread that ends this process when its parent ends."""
    threading.Thread(target=_wait_and_end, daemon=True).start()


def _wait_and_end() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)
