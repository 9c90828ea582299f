"""Pass on what the engine writes to standard error: its log, and lines of its libraries."""

import json
import logging
import sys
import threading
import time
from typing import IO

logger = logging.getLogger("serve.engine.output")

_MOST_A_MINUTE = 50  # lines of libraries: a damaged recording can cause any number


def relay(output: IO[bytes]) -> None:
    """Pass on the JSON lines of a process as they are, and make records of others, until its end.

    libmpg123 and torch write plain lines, and so does a process that crashes.
    """
    threading.Thread(target=_relay, args=(output,), name="asr-output", daemon=True).start()


def _relay(output: IO[bytes]) -> None:
    minute, n_lines = 0.0, 0
    with output:
        for raw in output:
            line = raw.decode("utf-8", "backslashreplace").rstrip()
            if _is_record(line):
                sys.stderr.write(line + "\n")
                continue
            if time.monotonic() - minute > 60:
                minute, n_lines = time.monotonic(), 0
            n_lines += 1
            if n_lines <= _MOST_A_MINUTE:
                logger.warning("the engine process wrote: %s", line[:1000])


def _is_record(line: str) -> bool:
    try:
        return isinstance(json.loads(line), dict)
    except ValueError:
        return False
