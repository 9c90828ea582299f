"""A process of a pool ends with the process it works for, however that one ends."""

import multiprocessing
import os
import threading


def end_with_parent() -> None:
    """Watch the parent from a thread: a pool's processes outlive one that was killed."""
    threading.Thread(target=_wait_and_end, daemon=True).start()


def _wait_and_end() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)
