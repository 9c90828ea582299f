"""The process that decodes: bytes of recordings come through a pipe, what was said goes back.

A process and not a thread, so that the event loop shares no interpreter lock with torch, a crash
or a hang takes no connection with it, and its memory is its own. Three kinds of thread work here:
one reads the pipe, two decode audio to pieces, the main one recognises batches of pieces.
"""

import io
import logging
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Any

import asr
from asr.errors import AsrError, AudioError, is_out_of_memory
from serve.engine.queue import FairQueue
from serve.logs import configure_logging

if TYPE_CHECKING:
    from asr.transcription.chunks import Piece, Reading
    from asr.transcription.recognizer import Recognizer

logger = logging.getLogger("serve.engine.process")

# Audio that is read ahead for all recordings together, in seconds; each has one piece anyhow.
_AHEAD_SECONDS = 320.0


@dataclass(eq=False)
class Job:
    """A recording on its way: what is asked, and how far it is."""

    id: int
    model: str
    options: dict[str, Any]
    reading: "Reading"
    pieces: Iterator["Piece"]
    arrived: float = field(default_factory=time.monotonic)
    started: float | None = None
    work: float = 0.0
    n_open: int = 0  # pieces that wait or are being recognised
    read: bool = False  # there are no more pieces
    paused: bool = False  # there are, and nobody reads them now
    gone: bool = False
    said: str = ""

    @property
    def quick(self) -> bool:
        """Whether the likeliest path will do, where the model has a CTC head."""
        return bool(self.options.get("quick"))


class Decoder:
    """Recognisers by name behind a pipe."""

    def __init__(
        self, pipe: Connection, recognizers: dict[str, "Recognizer"], max_seconds: float,
        batch_seconds: float, batch_wait: float,
    ) -> None:  # fmt: skip
        self._pipe, self._recognizers, self._max_seconds = pipe, recognizers, max_seconds
        self._batch_seconds, self._batch_wait = batch_seconds, batch_wait
        self._jobs: dict[int, Job] = {}
        self._queue: FairQueue[tuple[Job, Piece]] = FairQueue()
        self._changed = threading.Condition()
        self._sending = threading.Lock()
        self._readers = ThreadPoolExecutor(2, "asr-read")
        self._told_alive = 0.0

    def listen(self) -> None:
        """Take what comes through the pipe, in a thread, until it is closed."""
        threading.Thread(target=self._listen, name="asr-pipe", daemon=True).start()

    def turn(self) -> None:
        """Recognise a batch, or wait a little for one; messages say that this goes on."""
        self._tell_alive()
        batch = self._next_batch()
        if batch:
            self._recognize(batch)

    # --- what comes -----------------------------------------------------------------------------

    def _listen(self) -> None:
        try:
            while True:
                kind, *values = self._pipe.recv()
                (self._accept if kind == "job" else self._leave)(*values)
        except (EOFError, OSError):
            pass  # the service has ended
        except Exception:
            logger.exception("nothing more can be taken from the pipe")
        _end()

    def _accept(self, id: int, model: str, audio: bytes, options: dict[str, Any]) -> None:
        from asr.audio.recording import Recording

        recognizer = self._recognizers[model]
        recording = Recording(
            io.BytesIO(audio), recognizer.sample_rate, max_seconds=self._max_seconds
        )
        reading = recognizer.reading(recording)
        job = Job(id, model, options, reading, reading.pieces())
        with self._changed:
            self._jobs[id] = job
        self._readers.submit(self._read, job)

    def _leave(self, id: int) -> None:
        with self._changed:
            if job := self._jobs.pop(id, None):
                job.gone = True
                self._queue.drop(job)

    # --- audio to pieces ------------------------------------------------------------------------

    def _read(self, job: Job) -> None:
        """Read a job's next piece; go on behind others' as long as little waits."""
        if job.gone:
            return
        try:
            if not job.reading.segments and not job.n_open:
                job.reading.recording.check_length()
            piece = next(job.pieces, None)
        except AudioError as error:
            job.reading.error, piece = error, None
        except Exception as error:
            self._fail(job, error)
            return
        with self._changed:
            if job.gone:
                return
            if piece is None:
                job.read = True
            else:
                job.n_open += 1
                self._queue.put(job, (job.model, job.quick), piece.end - piece.start, (job, piece))
                job.paused = self._queue.seconds > _AHEAD_SECONDS
                if not job.paused:
                    self._readers.submit(self._read, job)
                self._changed.notify()
        self._finish(job)

    # --- pieces to texts ------------------------------------------------------------------------

    def _next_batch(self) -> list[tuple[Job, "Piece"]]:
        """What is to be recognised now; nothing where there is no work for a while."""
        with self._changed:
            if not len(self._queue):
                self._changed.wait(0.5)
                if len(self._queue) and self._batch_wait:
                    self._changed.wait_for(
                        lambda: self._queue.seconds >= self._batch_seconds, self._batch_wait
                    )
            batch = self._queue.take(self._batch_seconds)
            for job in dict.fromkeys(job for job, _ in batch if job.paused):
                job.paused = False
                self._readers.submit(self._read, job)
        return batch

    def _recognize(self, batch: list[tuple[Job, "Piece"]]) -> None:
        started = time.monotonic()
        for job, _ in batch:
            job.started = job.started or started
        recognizer = self._recognizers[batch[0][0].model]
        search = recognizer.config.search
        if batch[0][0].quick and recognizer.model.ctc_head:
            search = search.changed({"method": "ctc_greedy"})

        def gone(i: int) -> bool:
            self._tell_alive()
            return batch[i][0].gone

        try:
            recognizer.hear([piece for _, piece in batch], search, gone)
        except Exception as error:
            self._isolate(batch, error)
            return
        seconds = sum(piece.end - piece.start for _, piece in batch)
        work = time.monotonic() - started
        self._send("batch", len(batch), seconds, work)
        for job, piece in batch:
            job.work += work * (piece.end - piece.start) / seconds
            with self._changed:
                job.n_open -= 1
        for job in dict.fromkeys(job for job, _ in batch):
            if not job.gone:
                self._tell_partial(job)
            self._finish(job)

    def _isolate(self, batch: list[tuple[Job, "Piece"]], error: Exception) -> None:
        """Find out whose piece it is that cannot be recognised: only that recording fails."""
        broken = _breaks_the_gpu(error)
        if broken or len(batch) == 1:
            for job, _ in batch:
                self._fail(job, error)
            if broken:
                _end()
            return
        traceback.clear_frames(error.__traceback__)  # they hold the tensors of the whole batch
        for each in batch:
            if not each[0].gone:
                self._recognize([each])

    # --- what goes ------------------------------------------------------------------------------

    def _tell_alive(self) -> None:
        now = time.monotonic()
        if now - self._told_alive > 0.5:
            self._told_alive = now
            self._send("alive", len(self._queue), self._queue.seconds)

    def _tell_partial(self, job: Job) -> None:
        if not job.options.get("partials"):
            return
        heard = job.reading.result()  # once: the thread that reads may find an error meanwhile
        if isinstance(heard, AudioError):
            return
        if heard.text.startswith(job.said) and heard.text != job.said:
            self._send("partial", job.id, heard.text[len(job.said) :])
            job.said = heard.text

    def _finish(self, job: Job) -> None:
        """Answer a job of which all is known."""
        with self._changed:
            known = job.reading.error or (job.read and not job.n_open)
            if not known or self._jobs.pop(job.id, None) is None:
                return
            self._queue.drop(job)
            job.gone = True
        try:
            result = job.reading.result()
            if isinstance(result, AudioError):
                self._send("error", job.id, result.code, str(result))
            else:
                self._send("done", job.id, self._answer(job, result))
        except Exception as error:
            self._tell_failure(job, error)

    def _answer(self, job: Job, result: Any) -> dict[str, Any]:
        from asr.transcription.writers import FORMATS, words

        answer = result.as_dict()
        encode = self._recognizers[job.model].tokenizer.encode
        answer["ids"] = [encode(segment.text) for segment in result.segments]
        if job.options.get("words"):
            answer["words"] = [vars(word) for word in words(result)]
        if subtitles := job.options.get("subtitles"):
            answer["subtitles"] = FORMATS[subtitles](result)
        answer["wait_seconds"] = (job.started or time.monotonic()) - job.arrived
        answer["decode_seconds"] = job.work
        return answer

    def _fail(self, job: Job, error: Exception) -> None:
        with self._changed:
            self._queue.drop(job)
            job.gone = True
            if self._jobs.pop(job.id, None) is None:
                return
        self._tell_failure(job, error)

    def _tell_failure(self, job: Job, error: Exception) -> None:
        logger.error("a recording failed", exc_info=error)
        self._send("error", job.id, "out_of_memory" if is_out_of_memory(error) else "failed", "")

    def _send(self, *message: Any) -> None:
        with self._sending:
            try:
                self._pipe.send(message)
            except OSError:
                _end()


def _end() -> None:
    """The service has ended, or wants this process no longer: whatever hangs here, it goes."""
    os._exit(0)


def _breaks_the_gpu(error: Exception) -> bool:
    """Whether all that this process asks of the GPU from now on fails too (a failed assertion)."""
    is_gpu = type(error).__name__ == "AcceleratorError" or "CUDA error" in str(error)
    return is_gpu and not is_out_of_memory(error)


def main() -> None:
    """Load what the first message names, say so or why not, and work until the pipe is closed."""
    configure_logging()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)  # for the whole group; the service ends this process
    pipe: Connection = Connection(int(sys.argv[1]))
    try:
        start = pipe.recv()
        recognizers = {
            name: asr.load(folder, start["device"], start["int8"])
            for name, folder in start["models"].items()
        }
        for recognizer in recognizers.values():  # now, for while it is read nobody is told anything
            recognizer.language_model(recognizer.config.search)
    except EOFError:
        return
    except AsrError as error:
        pipe.send(("refused", type(error).__name__, str(error)))
        return
    pipe.send(("ready",))
    decoder = Decoder(
        pipe, recognizers, start["max_seconds"], start["batch_seconds"], start["batch_wait"]
    )
    decoder.listen()
    while True:
        decoder.turn()


if __name__ == "__main__":
    main()
