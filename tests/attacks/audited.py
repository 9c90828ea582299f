"""Runs verbs in one process and writes what they start, connect to and open: `test_audit.py`.

The arguments are a file for the events and a file of command lines, a JSON list each.
"""

import json
import logging
import os
import sys
from pathlib import Path

STARTS = {
    "subprocess.Popen", "os.system", "os.exec", "os.posix_spawn", "os.spawn", "os.startfile",
    "pty.spawn",
}  # fmt: skip
CONNECTS = {"socket.connect", "socket.getaddrinfo", "socket.sendto", "urllib.Request"}


def main() -> None:
    """Run each command line, and write a line for each event and each result."""
    events, lines = Path(sys.argv[1]), json.loads(Path(sys.argv[2]).read_text("utf-8"))
    log = os.open(events, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def write(kind: str, what: object) -> None:
        os.write(log, f"{json.dumps([kind, str(what)])}\n".encode())

    def hook(event: str, arguments: tuple[object, ...]) -> None:
        if event in STARTS or event in CONNECTS:
            write(event, arguments)
        elif event == "open" and isinstance(arguments[0], (str, bytes)):
            write(event, Path(os.fsdecode(arguments[0])).absolute())

    import asr.cli
    from asr.errors import AsrError

    logging.disable(logging.CRITICAL)
    sys.addaudithook(hook)
    for line in lines:
        write("verb", " ".join(line))
        try:
            asr.cli.app(line, standalone_mode=False)
            write("result", "done")
        except AsrError as error:
            write("result", error)
        except (SystemExit, Exception) as error:
            write("result", f"{type(error).__name__}: {error}")


main()
