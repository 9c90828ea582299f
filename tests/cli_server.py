"""Runs the command line many times without loading torch each time: see `helpers.run_cli`.

Each line of standard input asks for one run, and is answered by a line with its exit code. A run is
a process of its own, forked from this one, which has loaded what `asr` needs of other packages and
nothing of `asr`. (Lightning starts a thread when it is loaded, which no fork may do before.)
"""

import json
import os
import sys

import lhotse  # noqa: F401
import scipy.signal  # noqa: F401
import torch._dynamo
import torch.distributed.fsdp  # noqa: F401


def serve() -> list[str]:
    """Fork for each request; return in the child, with the arguments of its run."""
    for line in sys.stdin:
        asked = json.loads(line)
        child = os.fork()
        if not child:
            os.chdir(asked["cwd"])
            for number, path in enumerate((os.devnull, *asked["outputs"])):
                flags = os.O_WRONLY | os.O_APPEND if number else os.O_RDONLY
                os.dup2(os.open(path, flags), number)
            return asked["arguments"]
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        print(code, flush=True)
    sys.exit()


if __name__ == "__main__":  # and not where a process that a run starts loads this again
    sys.argv = ["asr", *serve()]
    from asr.cli import main

    main()
