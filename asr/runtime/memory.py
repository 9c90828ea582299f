"""Memory of a training process."""

import ctypes
import platform

import torch

_M_TRIM_THRESHOLD, _M_MMAP_MAX = -1, -4  # malloc.h; older ones refuse a large M_MMAP_THRESHOLD


def keep_buffers() -> None:
    """Keep freed buffers for the next step instead of returning them to the system.

    The activations of a step are hundreds of megabytes each. glibc maps and unmaps every one, and
    the kernel clears each page again. Other C libraries are left as they are. Fresh memory is no
    longer filled with NaN, as torch's deterministic mode does to show reads of uninitialized
    values; results do not depend on it.

    Batches of many lengths fragment the kept memory: the process holds more than a step needs.
    """
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    if platform.libc_ver()[0] == "glibc":
        libc = ctypes.CDLL(None)
        libc.mallopt(_M_MMAP_MAX, 0)
        libc.mallopt(_M_TRIM_THRESHOLD, -1)
