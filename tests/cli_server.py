"""Runs the command line many times without loading torch each time: see `helpers.start_cli`.

Each line of standard input asks for one run and is answered by a line with its process, or asks
for the end of one and is answered by its exit code. A run is a process of its own, forked from this
one, which has loaded what `asr` needs of other packages and nothing of `asr`.
"""

import faulthandler
import gc
import json
import os
import sys
from typing import Any
from unittest.mock import MagicMock


def load() -> None:
    """Load what takes seconds, but no module that starts a thread, which no fork may do before."""
    # A metric that nothing here uses loads the ONNX runtime, which starts one.
    sys.modules["torchmetrics.functional.audio.dnsmos"] = MagicMock()
    import lhotse  # noqa: F401
    import lightning  # noqa: F401
    import scipy.signal  # noqa: F401
    import torch._dynamo
    import torch.distributed.fsdp  # noqa: F401

    faulthandler.enable()
    gc.collect()
    gc.freeze()  # else the collections of each run copy all that is loaded
    assert len(os.listdir("/proc/self/task")) == 1, "a module starts a thread"  # noqa: PTH208


def serve() -> dict[str, Any]:
    """Answer requests; return in the process of each run, with what it was asked for."""
    for line in sys.stdin:
        asked = json.loads(line)
        if "process" in asked:
            print(os.waitstatus_to_exitcode(os.waitpid(asked["process"], 0)[1]), flush=True)
        elif child := os.fork():
            print(child, flush=True)
        else:
            os.chdir(asked["cwd"])
            for number, path in enumerate(asked["streams"]):
                flags = os.O_WRONLY | os.O_APPEND if number else os.O_RDONLY
                os.dup2(os.open(path, flags), number)
            return asked
    sys.exit()


if __name__ == "__main__":  # and not where a process that a run starts loads this again
    load()
    asked = serve()
    sys.argv = ["asr", *asked["arguments"]]
    exec(asked["before"], {})
    from asr.cli import main

    main()
