"""Memory of a training process."""

import ctypes
import os
import platform

import torch

_M_TRIM_THRESHOLD, _M_MMAP_MAX = -1, -4  # malloc.h; older ones refuse a large M_MMAP_THRESHOLD
# oneDNN keeps 1024 by default. A training of sentences in bfloat16 has some 3,000, of 0.1 MB each.
_KERNELS = "ONEDNN_PRIMITIVE_CACHE_CAPACITY", "4096"


def keep_kernels() -> None:
    """Keep the kernels that oneDNN compiles for each size of a matrix or a convolution.

    A training has more sizes than oneDNN keeps by default, and compiling again those that were
    dropped took a sixth of its time (bfloat16, AMX). It has no effect after oneDNN has computed
    anything, as in a program that transcribed before. A number that the environment has stays.
    """
    os.environ.setdefault(*_KERNELS)


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
