"""A Ray cluster, for those who have one: the connection, and what fails on its nodes."""

import logging
import os
import warnings
from typing import Any

from asr.errors import AsrError, ConfigError


def connect(engine: str) -> Any:
    """Return Ray, connected to a cluster: at `ray://HOST:PORT`, or for `ray` that of RAY_ADDRESS.

    For `ray` without RAY_ADDRESS it is the cluster of this machine, which is started if there is
    none. Raises ConfigError where none answers.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # Ray would report its use to its makers
    import ray

    address = None if engine == "ray" else engine
    try:
        with warnings.catch_warnings(action="ignore"):
            if not ray.is_initialized():
                ray.init(address, log_to_driver=False, logging_level=logging.ERROR)
    except (OSError, RuntimeError, ValueError) as error:
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        place = address or os.environ.get("RAY_ADDRESS", "ray")
        raise ConfigError(
            f"{place}: no Ray cluster answers ({reason:.200}): give ray://HOST:PORT of one that "
            "runs, with the port of its client server"
        ) from error
    return ray


def told(error: Any) -> AsrError:
    """Return the error to report for a RayTaskError, which wraps an exception on a node."""
    if isinstance(error.cause, AsrError):
        return error.cause
    reason = str(error).strip().splitlines()[-1]
    return AsrError(f"a node of Ray: {reason}: install the same lrt-asr on all nodes")
