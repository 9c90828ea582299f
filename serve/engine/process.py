"""The engine process: requests come through a pipe, transcripts go back.

`serve.engine.client` starts and restarts it.
It is a process and not a thread, so that the event loop shares no interpreter lock with torch, a
crash or a hang breaks no connection, and its memory is its own. One thread reads the pipe, two
read recordings into chunks, and one reports progress. The main thread recognizes a batch of these
chunks and a batch of streams' chunks in turn.
"""

import io
import logging
import os
import signal
import sys
import threading
import time
import traceback
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Connection

import numpy as np

from asr.audio.recording import Samples
from asr.decoding.request import Request
from asr.errors import AsrError, AudioError
from asr.runtime.load import follow_load
from asr.transcription.chunks import Chunk
from asr.transcription.recognizer import Recognizer, result_of
from serve.engine import messages
from serve.engine.faults import breaks_the_gpu, failure
from serve.engine.job import Job, options_of
from serve.engine.models import load, streaming_names
from serve.engine.queue import FairQueue
from serve.engine.streams import Streams
from serve.logs import configure_logging
from serve.settings import Settings

logger = logging.getLogger("serve.engine.process")

# Seconds of audio that is read ahead, in addition to one chunk of each recording.
_AHEAD_SECONDS = 320.0
_BATCH_BESIDE_STREAMS = 20.0  # seconds of the longest batch while streams are open and wait
_REPORT_SECONDS = 0.5


class Engine:
    """Recognizers by name behind a pipe."""

    def __init__(
        self, pipe: Connection, recognizers: dict[str, Recognizer], settings: Settings
    ) -> None:
        self._pipe, self._recognizers, self._settings = pipe, recognizers, settings
        self._jobs: dict[int, Job] = {}
        self._queue: FairQueue[tuple[Job, Chunk]] = FairQueue()
        self._to_read: FairQueue[Job] = FairQueue()  # by decoded samples instead of seconds
        self._reading: dict[int, float] = {}  # since when each thread reads its slice
        self._changed = threading.Condition()
        self._sending = threading.Lock()
        self._streams = Streams(self._changed, self._send, _end)
        self._readers = ThreadPoolExecutor(2, "asr-read")
        self._batch: list[Request] = []  # of the chunks that are being recognized
        self._n_turns = 0

    def run(self) -> None:
        """Accept requests and recognize batches until the pipe is closed."""
        for target in (self._listen, self._report_progress):
            threading.Thread(target=target, name=f"asr{target.__name__}", daemon=True).start()
        while True:
            self.recognize_next()

    def recognize_next(self) -> None:
        """Advance the streams and recognize a batch, or wait a little for either."""
        self._n_turns += 1
        self._streams.advance()
        if batch := self._next_batch():
            self._recognize(batch)

    def _report_progress(self) -> None:
        """Send a sign of life, only while decoding steps or turns of the main loop go on."""
        before = -1
        while True:
            now = self._n_turns + sum(request.n_steps for request in self._batch)
            if now != before and not self._is_stuck():
                before = now
                self._send(messages.Alive(len(self._queue), self._queue.seconds))
            time.sleep(_REPORT_SECONDS)

    def _is_stuck(self) -> bool:
        """Tell whether recordings wait while a slice of another takes over `hang_seconds`."""
        limit = time.monotonic() - self._settings.hang_seconds
        with self._changed:
            return len(self._to_read) > 0 and min(self._reading.values(), default=limit) < limit

    def _listen(self) -> None:
        try:
            while True:
                self._receive(self._pipe.recv())
        except (EOFError, OSError):
            pass  # the service has ended
        except Exception:
            logger.exception("the pipe cannot be read any more")
        _end()

    def _receive(self, message: messages.ToEngine) -> None:
        match message:
            case messages.Transcribe():
                self._accept(message)
            case messages.Open():
                self._streams.open(message, self._recognizers[message.model])
            case messages.Audio():
                self._streams.put(message)
            case messages.Cancel():
                self._streams.drop(message.id)
                if job := self._jobs.get(message.id):
                    self._remove(job)

    def _accept(self, asked: messages.Transcribe) -> None:
        source: Samples | io.BytesIO = io.BytesIO(asked.audio)
        if asked.pcm_rate:
            source = Samples(np.frombuffer(asked.audio, "<i2"), asked.pcm_rate)
        request = Request()
        recording = self._recognizers[asked.model].open(
            source,
            options_of(self._recognizers[asked.model], asked),
            max_seconds=self._settings.max_seconds,
            max_samples=self._settings.max_samples,
            request=request,
        )
        job = Job(asked, recording, recording.slices(), request)
        with self._changed:
            self._jobs[asked.id] = job
            self._plan_to_read(job)

    def _remove(self, job: Job) -> bool:
        """Drop a job with its work in the queue and in the batch; return whether it was here."""
        with self._changed:
            self._queue.drop(job)
            self._to_read.drop(job)
            job.request.is_cancelled = True
            return self._jobs.pop(job.asked.id, None) is not None

    def _plan_to_read(self, job: Job) -> None:
        self._to_read.put(job, None, job.cost, job)
        self._readers.submit(self._read_next)

    def _read_next(self) -> None:
        """Read a slice of the recording whose turn it is, if it was not cancelled meanwhile."""
        me = threading.get_ident()
        with self._changed:
            turn = self._to_read.take(0)
            self._reading[me] = time.monotonic()
        try:
            for job in turn:
                self._read(job)
        finally:
            with self._changed:
                del self._reading[me]

    def _read(self, job: Job) -> None:
        """Read a slice of a job; plan to read another one while the queue is short."""
        before = job.recording.recording.n_samples
        try:
            chunk = next(job.slices, None)
        except Exception as error:
            self._fail(job, error)
            return
        with self._changed:
            if job.request.is_cancelled:
                return
            job.cost = max(1, job.recording.recording.n_samples - before)
            if chunk:
                job.n_open += 1
                kind = (job.asked.model, job.asked.quick, job.asked.hotwords)
                self._queue.put(job, kind, chunk.seconds, (job, chunk))
                self._changed.notify()
            if not job.recording.is_read:
                job.is_paused = chunk is not None and self._queue.seconds > _AHEAD_SECONDS
                if not job.is_paused:
                    self._plan_to_read(job)
        self._finish(job)

    def _next_batch(self) -> list[tuple[Job, Chunk]]:
        """Return the chunks to recognize now; wait a little for some, then return an empty list."""
        limit, wait = self._settings.batch_seconds, self._settings.batch_wait
        with self._changed:
            if not len(self._queue) and not self._streams.is_due:
                self._changed.wait(_REPORT_SECONDS)
                if len(self._queue) and wait:
                    self._changed.wait_for(lambda: self._queue.seconds >= limit, wait)
            if len(self._streams):
                limit = min(limit, _BATCH_BESIDE_STREAMS)
            batch = self._queue.take(limit)
            for job in dict.fromkeys(job for job, _ in batch if job.is_paused):
                job.is_paused = False
                self._plan_to_read(job)
        return batch

    def _recognize(self, batch: list[tuple[Job, Chunk]]) -> None:
        started = time.monotonic()
        for job, _ in batch:
            job.started = job.started or started
        asked = batch[0][0].asked
        recognizer = self._recognizers[asked.model]
        self._batch = [job.request for job, _ in batch]
        try:
            chunks = [chunk for _, chunk in batch]
            segments = recognizer.recognize(chunks, options_of(recognizer, asked))
        except Exception as error:
            self._isolate(batch, error)
            return
        seconds = sum(chunk.seconds for _, chunk in batch)
        work = time.monotonic() - started
        self._send(messages.BatchDone(len(batch), seconds, work))
        for (job, chunk), segment in zip(batch, segments, strict=True):
            job.recording.segments.append(segment)
            job.decode_seconds += work * chunk.seconds / seconds
        for job, n_chunks in Counter(job for job, _ in batch).items():
            if job.asked.partials and not job.request.is_cancelled:
                self._send_partial(job)
            with self._changed:  # after the partial: a reading thread may find the job done
                job.n_open -= n_chunks
            self._finish(job)

    def _isolate(self, batch: list[tuple[Job, Chunk]], error: Exception) -> None:
        """Recognize each chunk of a failed batch alone, so that only the culprit's job fails."""
        is_broken = breaks_the_gpu(error)
        if is_broken or len(batch) == 1:
            for job, _ in batch:
                self._fail(job, error)
            if is_broken:
                _end()
            return
        traceback.clear_frames(error.__traceback__)  # they hold the tensors of the whole batch
        for each in batch:
            if not each[0].request.is_cancelled:
                self._recognize([each])

    def _send_partial(self, job: Job) -> None:
        result = result_of(job.recording)  # once: the thread that reads may find an error meanwhile
        if isinstance(result, AudioError):
            return
        delta = result.text.removeprefix(job.sent) if result.text.startswith(job.sent) else ""
        job.sent += delta
        read = job.recording.recording
        done = min(1.0, read.fraction * result.segments[-1].end / read.seconds)
        job.progress = max(job.progress, done)
        self._send(messages.Partial(job.asked.id, delta, job.progress))

    def _finish(self, job: Job) -> None:
        """Send the result of a job, if the job is done."""
        with self._changed:
            is_done = job.recording.error or (job.recording.is_read and not job.n_open)
            if not is_done or not self._remove(job):
                return
        result = result_of(job.recording)
        if isinstance(result, AudioError):
            self._send(messages.Failed(job.asked.id, result.code, str(result)))
        else:
            wait = (job.started or time.monotonic()) - job.arrived
            self._send(messages.Done(job.asked.id, result, wait, job.decode_seconds))

    def _fail(self, job: Job, error: Exception) -> None:
        if self._remove(job):
            self._send(failure(job.asked.id, error))

    def _send(self, message: messages.FromEngine) -> None:
        with self._sending:
            try:
                self._pipe.send(message)
            except OSError:
                _end()


def _end() -> None:
    """End the process at once, even if a thread hangs: the service has ended, or restarts it."""
    os._exit(0)


def main() -> None:
    """Load the models that the first message names, and serve until the pipe is closed."""
    configure_logging()
    follow_load()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # the service ends this process
    pipe: Connection = Connection(int(sys.argv[1]))
    try:
        settings: Settings = pipe.recv()
        recognizers = load(settings)
    except EOFError:
        return
    except AsrError as error:
        pipe.send(error)
        return
    pipe.send(messages.Ready(streaming_names(recognizers)))
    Engine(pipe, recognizers, settings).run()


if __name__ == "__main__":
    main()
