"""Start, watch and restart the engine process; send it jobs and receive their events."""

import asyncio
import itertools
import logging
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Self, TypeVar

from asr.decoding.hotwords import Hotword
from asr.errors import AsrError
from asr.runtime.threads import choose_threads, thread_variables
from serve.engine import messages
from serve.engine.outbox import Outbox
from serve.engine.output import relay
from serve.errors import ApiError, unavailable
from serve.metrics import Metrics
from serve.settings import Settings

logger = logging.getLogger("serve.engine.client")

_FIRST_PAUSE, _LONGEST_PAUSE = 0.5, 30.0  # seconds before another start
_HEALTHY_SECONDS = 60.0  # a process that lived so long is restarted after the first pause
# A restart of the process is given up after _LOAD_SECONDS, or after _LOAD_TIMES the time of the
# first load, whichever is longer.
_LOAD_SECONDS, _LOAD_TIMES = 600.0, 10
_SECRETS = ("ASR_API_KEYS",)  # kept from the process, which decodes strangers' files
# Batches of many shapes fragment glibc's heap: blocks of 4 MiB and more are mapped separately, and
# given back. oneDNN by default caches primitives for 1024 shapes.
_MEMORY = {
    "MALLOC_MMAP_THRESHOLD_": str(2**22),
    "MALLOC_TRIM_THRESHOLD_": str(2**26),
    "ONEDNN_PRIMITIVE_CACHE_CAPACITY": "64",
}
# A recording that is too large for the memory gets no 5xx, since clients would retry.
_AUDIO_STATUS = {"unsupported_media": 415, "too_long": 413, "out_of_memory": 413}

Event = messages.Partial | messages.Done


class Job:
    """A recording in the engine. Leaving the context cancels an unfinished job."""

    def __init__(self, engine: "EngineClient", id: int, model: str) -> None:
        self._engine, self._id, self.model = engine, id, model
        self.events: asyncio.Queue[Event | messages.Streamed | ApiError] = asyncio.Queue()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._engine.cancel(self._id)

    async def next(self) -> Event:
        """Return the next event. Raises ApiError where the recording cannot be recognized."""
        event = await self._next()
        assert not isinstance(event, messages.Streamed), "a recording is no stream"
        return event

    async def _next(self) -> Event | messages.Streamed:
        event = await self.events.get()
        if isinstance(event, ApiError):
            raise event
        return event


class Stream(Job):
    """A stream in the engine: audio that arrives in parts."""

    def __exit__(self, *_: object) -> None:
        super().__exit__()
        self._engine._outbox.drop_parts(self._id)

    async def news(self) -> messages.Streamed:
        """Return the stream's next new results. Raises ApiError where the stream cannot go on."""
        event = await self._next()
        assert isinstance(event, messages.Streamed), "a stream is no recording"
        return event

    def send(self, pcm: bytes, is_last: bool = False) -> None:
        """Send more audio."""
        self._engine.send_part(messages.Audio(self._id, pcm, is_last))


AnyJob = TypeVar("AnyJob", bound=Job)


class EngineClient:
    """The engine process, restarted when it dies or hangs.

    `hold` counts the bytes of recordings whose requests have ended, while the pipe takes them.
    `streaming` names the models with a streaming encoder. Raises BundleError or ConfigError where
    the process cannot load the models of the settings, AsrError where it ends while loading.
    """

    def __init__(self, settings: Settings, metrics: Metrics, hold: Callable[[int], None]) -> None:
        self._settings, self._metrics = settings, metrics
        self._jobs: dict[int, Job] = {}
        self._ids = itertools.count()
        self._outbox = Outbox(hold)
        self._closing = False
        self._died = asyncio.Event()
        self._load_limit: float | None = None
        began = time.monotonic()
        self._start()
        self._load_limit = max(_LOAD_SECONDS, _LOAD_TIMES * (time.monotonic() - began))

    def submit(
        self,
        model: str,
        audio: bytes,
        pcm_rate: int | None = None,
        partials: bool = False,
        quick: bool = False,
        hotwords: tuple[Hotword, ...] = (),
    ) -> Job:
        """Send a recording to the engine; the options are those of `messages.Transcribe`.

        Raises ApiError 503 while no engine process is ready.
        """
        job = self._add(Job(self, next(self._ids), model))
        message = messages.Transcribe(job._id, model, audio, pcm_rate, partials, quick, hotwords)
        self._outbox.put(self._pipe, message)
        return job

    def open(
        self,
        model: str,
        pcm_rate: int,
        silence_seconds: float | None,
        hotwords: tuple[Hotword, ...] = (),
    ) -> Stream:
        """Begin a stream, as `messages.Open` says. Raises as `submit` does."""
        stream = self._add(Stream(self, next(self._ids), model))
        self.send_part(messages.Open(stream._id, model, pcm_rate, silence_seconds, hotwords))
        return stream

    def send_part(self, part: messages.Open | messages.Audio) -> None:
        """Send a part of a stream, unless the stream has ended."""
        if part.id in self._jobs:
            self._outbox.put_part(self._pipe, part)

    def _add(self, job: AnyJob) -> AnyJob:
        if self._closing:
            raise unavailable("the service is being stopped: try another replica")
        if not self.ready:
            reason = "makes no progress" if self._loaded else "is being loaded"
            raise unavailable(f"the model {reason}: try again soon", retry_after=5)
        self._jobs[job._id] = job
        return job

    def cancel(self, id: int) -> None:
        """Cancel a job, which ends within a decoding step; do nothing if it has ended."""
        if self._jobs.pop(id, None):
            self._outbox.cancel(self._pipe, id)

    @property
    def ready(self) -> bool:
        """Return whether the process lives and has reported progress lately."""
        lately = time.monotonic() - self._last_message < self._settings.hang_seconds / 2
        return self._loaded and not self._closing and lately

    @property
    def pid(self) -> int:
        """Return the id of the process."""
        return self._process.pid

    def _start(self) -> None:
        """Start the process and wait until it has loaded the models."""
        self._loaded = False
        names = ", ".join(self._settings.models)
        ours, theirs = socket.socketpair()
        # -P: no module is imported from the working folder, which may be anybody's.
        command = [sys.executable, "-P", "-m", "serve.engine.process", str(theirs.fileno())]
        with theirs, ours:
            self._process = subprocess.Popen(
                command, pass_fds=[theirs.fileno()], env=_environment(), stderr=subprocess.PIPE
            )
            if self._closing:  # `kill` may have ended the process before this one
                self._process.kill()
            assert self._process.stderr
            relay(self._process.stderr)
            self._pipe = Connection(ours.detach())
        try:
            self._pipe.send(self._settings.model_copy(update={"api_keys": ()}))
            if not self._pipe.poll(self._load_limit):
                reason = f"it has not loaded {names} within {self._load_limit:g} seconds"
                raise AsrError(f"{reason}: are the bundles and the device reachable?")
            answer: messages.Ready | AsrError = self._pipe.recv()
        except (EOFError, OSError) as error:
            code = self._process.wait()
            advice = "is there memory enough?" if code < 0 else "its log says why"
            raise AsrError(
                f"the engine process ended while it loaded {names} (exit code {code}): {advice}"
            ) from error
        if isinstance(answer, AsrError):
            self._process.wait()
            raise answer
        self.streaming = answer.streaming
        self._loaded, self._last_message = True, time.monotonic()
        self._started = self._last_message

    async def supervise(self) -> None:
        """Receive, watch and restart, until cancelled."""
        pause = _FIRST_PAUSE
        self._listen()
        while True:
            while not self._died.is_set():
                with suppress(TimeoutError):
                    # In Python 3.11 `wait_for` loses a cancellation that comes with the death.
                    async with asyncio.timeout(1.0):
                        await self._died.wait()
                if time.monotonic() - self._last_message > self._settings.hang_seconds:
                    logger.error("the engine process made no progress and is killed")
                    self._process.kill()
            self._loaded = False
            if self._closing:
                return
            self._fail_all("the engine process ended: it is being restarted, try again", 5)
            self._pipe.close()
            if time.monotonic() - self._started > _HEALTHY_SECONDS:
                pause = _FIRST_PAUSE
            code = await asyncio.to_thread(self._process.wait)
            self._metrics.engine_restarts.inc()
            logger.error("the engine process ended", extra={"fields": {"exit_code": code}})
            while not (self._loaded or self._closing):
                await asyncio.sleep(pause)
                pause = min(2 * pause, _LONGEST_PAUSE)
                try:
                    await asyncio.to_thread(self._start)
                    self._listen()
                # RuntimeError: the machine has no thread left.
                except (AsrError, OSError, RuntimeError) as error:
                    self._loaded = False
                    self._process.kill()
                    await asyncio.to_thread(self._process.wait)
                    if not self._closing:
                        logger.error("the engine process did not start: %s", error)

    def _listen(self) -> None:
        loop, pipe = asyncio.get_running_loop(), self._pipe
        self._died.clear()

        def listen() -> None:
            with suppress(RuntimeError):  # the loop has ended
                try:
                    with suppress(EOFError, OSError):
                        while True:
                            loop.call_soon_threadsafe(self._on_message, pipe.recv())
                finally:
                    loop.call_soon_threadsafe(self._died.set)

        threading.Thread(target=listen, name="asr-listen", daemon=True).start()

    def _on_message(self, message: messages.FromEngine) -> None:
        self._last_message = time.monotonic()
        match message:
            case messages.Alive():
                self._metrics.waiting_chunks.set(message.waiting_chunks)
                self._metrics.waiting_seconds.set(message.waiting_seconds)
            case messages.BatchDone():
                self._metrics.count_batch(message)
            case messages.Partial():
                if job := self._jobs.get(message.id):
                    job.events.put_nowait(message)
            case messages.Streamed():
                if job := self._jobs.get(message.id):
                    job.events.put_nowait(message)
                    if message.is_last:
                        del self._jobs[message.id]
            case messages.Done():
                if job := self._jobs.pop(message.id, None):
                    self._metrics.wait.observe(message.wait_seconds)
                    job.events.put_nowait(message)
            case messages.Failed():
                if job := self._jobs.pop(message.id, None):
                    job.events.put_nowait(_failure(message.code, message.message))

    def _fail_all(self, message: str, retry_after: int) -> None:
        for job in self._jobs.values():
            job.events.put_nowait(unavailable(message, retry_after=retry_after))
        self._jobs.clear()
        self._outbox.clear()

    def close(self) -> None:
        """End the process; its jobs fail."""
        self._fail_all("the service is being stopped: try another replica", 1)
        self.kill()
        self._process.wait()
        self._outbox.close()

    def kill(self) -> None:
        """End the process at once, for good."""
        self._closing = True
        self._process.kill()


def _environment() -> dict[str, str]:
    """Return the environment of the engine process: values for memory and threads, no secrets."""
    variables = {**_MEMORY, **os.environ, **thread_variables(choose_threads())}
    return {name: value for name, value in variables.items() if name.upper() not in _SECRETS}


def _failure(code: str, message: str) -> ApiError:
    """Return the engine's failure of a recording as an error of the service."""
    if code == "out_of_memory":
        message = "the recording needs more memory than is free: send it in shorter parts"
    if code == "failed":
        return ApiError(500, "the service failed: try again, its log says why", code=code)
    return ApiError(_AUDIO_STATUS.get(code, 400), message, "file", code)
