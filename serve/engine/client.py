"""The decoding process as the event loop sees it: jobs go out, events come back."""

import asyncio
import itertools
import logging
import os
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from multiprocessing.connection import Connection

from asr import errors
from asr.errors import AsrError
from serve.engine.messages import (
    Alive,
    BatchDone,
    Cancel,
    Done,
    Failed,
    FromEngine,
    Partial,
    Ready,
    Refused,
    Start,
    ToEngine,
    Transcribe,
)
from serve.errors import ApiError
from serve.metrics import Metrics
from serve.settings import Settings

logger = logging.getLogger("serve.engine.client")

_FIRST_PAUSE, _LONGEST_PAUSE = 0.5, 30.0  # seconds before another start
# Batches of ever other shapes leave holes in glibc's heap, which grows by them: blocks of 4 MiB and
# more are mapped for themselves, and given back. oneDNN keeps what it prepared for 1024 shapes.
_MEMORY = {
    "MALLOC_MMAP_THRESHOLD_": str(2**22),
    "MALLOC_TRIM_THRESHOLD_": str(2**26),
    "ONEDNN_PRIMITIVE_CACHE_CAPACITY": "64",
}
# What is too large for the memory is so again: no 5xx, which clients repeat.
_AUDIO_STATUS = {"unsupported_media": 415, "too_long": 413, "out_of_memory": 413}

Event = Partial | Done


class Job:
    """A recording that the decoding process has; whoever holds it must leave it in the end."""

    def __init__(self, worker: "EngineClient", id: int) -> None:
        self._worker, self._id = worker, id
        self.events: asyncio.Queue[Event | ApiError] = asyncio.Queue()

    async def next(self) -> Event:
        """What is heard next. Raises ApiError where the recording cannot be recognised."""
        event = await self.events.get()
        if isinstance(event, ApiError):
            raise event
        return event

    def leave(self) -> None:
        """Want no more: its place is free within one decoding step."""
        self._worker.forget(self._id)


class EngineClient:
    """The decoding process, restarted where it dies or hangs.

    Raises BundleError or ConfigError where it cannot load what the settings name.
    """

    def __init__(self, settings: Settings, metrics: Metrics) -> None:
        self._settings, self._metrics = settings, metrics
        self._jobs: dict[int, Job] = {}
        self._numbers = itertools.count()
        self._sender = ThreadPoolExecutor(1, "asr-send")
        self._closing = False
        self._died = asyncio.Event()
        self._start()

    # --- jobs -----------------------------------------------------------------------------------

    def submit(
        self,
        model: str,
        audio: bytes,
        pcm_rate: int | None = None,
        partials: bool = False,
        quick: bool = False,
    ) -> Job:
        """Hand a recording over; the options are those of `serve.engine.messages.Transcribe`.

        Raises ApiError 503 while no decoding process can take it.
        """
        if not self.ready:
            raise _unavailable("the model is being loaded: try again in a few seconds", 5)
        job = Job(self, next(self._numbers))
        self._jobs[job._id] = job
        self._send(Transcribe(job._id, model, audio, pcm_rate, partials, quick))
        return job

    def forget(self, id: int) -> None:
        """Drop a job; nothing where it has ended."""
        if self._jobs.pop(id, None):
            self._send(Cancel(id))

    @property
    def ready(self) -> bool:
        """Whether the process lives and its decoding loop has been heard of lately."""
        lately = time.monotonic() - self._last_message < self._settings.hang_seconds / 2
        return self._loaded and not self._closing and lately

    @property
    def pid(self) -> int:
        """Of the process."""
        return self._process.pid

    def _send(self, message: ToEngine) -> None:
        pipe = self._pipe

        def send() -> None:
            with suppress(OSError):  # it died, and whoever listens to it finds out
                pipe.send(message)

        self._sender.submit(send)

    # --- the process ----------------------------------------------------------------------------

    def _start(self) -> None:
        """Start the process and wait until it has loaded the models."""
        self._loaded = False
        ours, theirs = socket.socketpair()
        command = [sys.executable, "-m", "serve.engine.process", str(theirs.fileno())]
        with theirs, ours:
            self._process = subprocess.Popen(
                command, pass_fds=[theirs.fileno()], env={**_MEMORY, **os.environ}
            )
            self._pipe = Connection(ours.detach())
        settings = self._settings
        start = Start(
            settings.models,
            settings.device,
            settings.int8,
            settings.max_seconds,
            settings.batch_seconds,
            settings.batch_wait,
        )
        try:
            self._pipe.send(start)
            answer: Ready | Refused = self._pipe.recv()
        except (EOFError, OSError) as error:
            raise AsrError(
                f"the decoding process ended while it loaded {', '.join(settings.bundles)} "
                f"(exit code {self._process.wait()}): is there memory enough?"
            ) from error
        if isinstance(answer, Refused):
            raise getattr(errors, answer.error)(answer.message)
        self._loaded, self._last_message = True, time.monotonic()

    async def supervise(self) -> None:
        """Receive, watch and restart, until cancelled."""
        pause = _FIRST_PAUSE
        self._listen()
        while True:
            while not self._died.is_set():
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._died.wait(), 1.0)
                if time.monotonic() - self._last_message > self._settings.hang_seconds:
                    logger.error("the decoding process made no progress and is killed")
                    self._process.kill()
            self._loaded = False
            if self._closing:
                return
            self._fail_all("the decoding process ended: it is being restarted, try again", 5)
            self._pipe.close()
            code = await asyncio.to_thread(self._process.wait)
            self._metrics.worker_restarts.inc()
            logger.error("the decoding process ended", extra={"fields": {"exit_code": code}})
            while not self._loaded:
                await asyncio.sleep(pause)
                pause = min(2 * pause, _LONGEST_PAUSE)
                try:
                    await asyncio.to_thread(self._start)
                    self._listen()
                # RuntimeError: the machine has no thread left.
                except (AsrError, OSError, RuntimeError) as error:
                    self._loaded = False
                    logger.error("the decoding process did not start: %s", error)

    def _listen(self) -> None:
        loop, pipe = asyncio.get_running_loop(), self._pipe
        self._died.clear()

        def listen() -> None:
            with suppress(RuntimeError):  # the loop has ended
                with suppress(EOFError, OSError):
                    while True:
                        loop.call_soon_threadsafe(self._on_message, pipe.recv())
                loop.call_soon_threadsafe(self._died.set)

        threading.Thread(target=listen, name="asr-listen", daemon=True).start()

    def _on_message(self, message: FromEngine) -> None:
        self._last_message = time.monotonic()
        match message:
            case Alive():
                self._metrics.waiting_chunks.set(message.waiting_chunks)
                self._metrics.waiting_seconds.set(message.waiting_seconds)
            case BatchDone():
                self._metrics.batch(message.n_chunks, message.audio_seconds, message.decode_seconds)
            case Partial():
                if job := self._jobs.get(message.id):
                    job.events.put_nowait(message)
            case Done():
                if job := self._jobs.pop(message.id, None):
                    self._metrics.wait.observe(message.wait_seconds)
                    job.events.put_nowait(message)
            case Failed():
                if job := self._jobs.pop(message.id, None):
                    job.events.put_nowait(_failure(message.code, message.message))

    def _fail_all(self, message: str, retry_after: int) -> None:
        for job in self._jobs.values():
            job.events.put_nowait(_unavailable(message, retry_after))
        self._jobs.clear()

    def close(self) -> None:
        """End the process; jobs that it had fail."""
        self._fail_all("the service is being stopped: try another replica", 1)
        self.kill()
        self._process.wait()
        self._sender.shutdown(wait=False)

    def kill(self) -> None:
        """End the process at once, for good."""
        self._closing = True
        self._process.kill()


def _unavailable(message: str, retry_after: int) -> ApiError:
    return ApiError(503, message, code="unavailable", headers={"retry-after": str(retry_after)})


def _failure(code: str, message: str) -> ApiError:
    """What the decoding process says of a recording, as an answer."""
    if code == "out_of_memory":
        message = "the recording needs more memory than is free: send it in shorter parts"
    if code == "failed":
        return ApiError(500, "the service failed: try again, its log says why", code=code)
    return ApiError(_AUDIO_STATUS.get(code, 400), message, "file", code)
