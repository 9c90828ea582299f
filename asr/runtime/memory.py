"""How a training process holds its memory."""

import ctypes
import platform

import torch

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # malloc.h


def keep_buffers() -> None:
    """Let freed buffers serve the next step instead of going back to the system.

    The activations of a step are hundreds of megabytes each. glibc maps and unmaps every one, and
    the kernel clears each page anew. Other C libraries are left as they are. Nor is fresh memory
    filled with NaN, which torch's deterministic mode does to show reads before writes; results do
    not depend on it.

    Batches of many lengths fragment what is kept: the process holds more than its steps need
    at once.
    """
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    if platform.libc_ver()[0] == "glibc":
        libc = ctypes.CDLL(None)
        libc.mallopt(_M_MMAP_THRESHOLD, 2**31 - 1)
        libc.mallopt(_M_TRIM_THRESHOLD, -1)
