"""Worker processes that end with their parent, even if it is killed."""

import multiprocessing
import os
import threading


def end_with_parent() -> None:
    """Start a thread that ends this process when its parent ends."""
    threading.Thread(target=_wait_and_end, daemon=True).start()


def _wait_and_end() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)
