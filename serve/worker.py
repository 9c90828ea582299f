"""The thread that decodes, so that the event loop never does."""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, BinaryIO

if TYPE_CHECKING:
    from asr.recognizer import Recognizer, Transcript


class Worker:
    """A recogniser and its one thread: requests are decoded one by one, in order of arrival.

    Not a pool: torch spreads each decode over all cores by itself, and keeps a set of helper
    threads for every thread that calls it. `max_seconds` of audio are decoded at most.
    """

    def __init__(self, recognizer: "Recognizer", max_seconds: float) -> None:
        self._recognizer, self._max_seconds = recognizer, max_seconds
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="asr-decode")

    async def transcribe(self, file: BinaryIO, quick: bool = False) -> "Transcript":
        """What an open recording says. Raises AudioError as `Recognizer.transcribe` does.

        `quick` takes the likeliest path, where the model has a CTC head.
        """
        search = self._recognizer.config.search
        if quick and self._recognizer.model.ctc_head:
            search = search.changed({"method": "ctc_greedy"})
        return await asyncio.get_running_loop().run_in_executor(
            self._thread,
            lambda: self._recognizer.transcribe(file, search, self._max_seconds),
        )

    def close(self) -> None:
        """Let the decode that is running end, and drop those that wait."""
        self._thread.shutdown(cancel_futures=True)
