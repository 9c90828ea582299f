"""Errors of the engine's work: what the service is told, and which of them end the process."""

import logging

from asr.errors import is_out_of_memory
from serve.engine.messages import Failed

logger = logging.getLogger("serve.engine.faults")


def failure(id: int, error: Exception) -> Failed:
    """Log the error of a recording or a stream; return the message about it."""
    logger.error("a recording failed", exc_info=error)
    return Failed(id, "out_of_memory" if is_out_of_memory(error) else "failed", "")


def breaks_the_gpu(error: Exception) -> bool:
    """Tell whether all later work on the GPU fails too (a failed assertion)."""
    is_gpu = type(error).__name__ == "AcceleratorError" or "CUDA error" in str(error)
    return is_gpu and not is_out_of_memory(error)
