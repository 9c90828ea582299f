"""Worker processes that end with their parent, even if it is killed, and pools of them."""

import multiprocessing
import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from multiprocessing.context import ForkServerContext, SpawnContext


@contextmanager
def process_pool(
    n: int,
    context: SpawnContext | ForkServerContext,
    start: Callable[..., object],
    *arguments: object,
) -> Iterator[ProcessPoolExecutor]:
    """Yield a pool of `n` processes, each of which calls `start` first; they end on leaving.

    All are started before any work. Python's own pool starts one with each task; where another
    dies at that moment (out of memory), Python 3.11 waits without an end.
    """
    pool = ProcessPoolExecutor(n, context, start, arguments)
    try:
        pool._launch_processes()  # type: ignore[attr-defined]  # which Python itself does for forks
        yield pool
    finally:
        for process in list(pool._processes.values()):  # in Python 3.14: pool.terminate_workers()
            process.terminate()
        pool.shutdown(cancel_futures=True)


def end_with_parent() -> None:
    """Start a thread that ends this process when its parent ends."""
    threading.Thread(target=_wait_and_end, daemon=True).start()


def _wait_and_end() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)
