"""The order of chunks and their batches; cancellation; one bad recording harms no other."""

import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from io import BytesIO
from itertools import pairwise
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from asr.decoding.request import Request
from asr.errors import AudioError
from asr.transcription.recognizer import result_of
from asr.transcription.transcript import Segment
from serve.engine.messages import Cancel, Done, Failed, Partial
from serve.engine.process import Engine
from serve.engine.queue import FairQueue
from tests.helpers import beeps, encode_audio, engine, last_messages, transcribe, wait_for


def test_short_recordings_do_not_wait_for_long_ones() -> None:
    queue: FairQueue[str] = FairQueue()
    for i in range(90):
        queue.put("long", 0, 20, f"long {i}")
    for i in range(3):
        queue.put(f"short {i}", 0, 3, f"short {i}")
    assert queue.take(9) == ["short 0", "short 1", "short 2"]
    assert queue.take(40) == ["long 0", "long 1"]


def test_long_recordings_come_forward_however_many_short_ones_come() -> None:
    """A short one comes for each that is done; five wait always, so a sixth is the long one's."""
    queue: FairQueue[str] = FairQueue()
    for i in range(3):
        queue.put("long", 0, 20, f"long {i}")
    taken: list[str] = []
    for i in range(200):
        queue.put(f"short {i}", 0, 3, f"short {i}")
        if i >= 4:
            taken += queue.take(0)
    indices = [i for i, item in enumerate(taken) if item.startswith("long")]
    assert len(indices) == 3
    assert all(20 < b - a < 50 for a, b in pairwise([0, *indices])), "20 s for 5 times 20 s"


CHUNKS = st.lists(st.tuples(st.integers(0, 5), st.integers(0, 1), st.floats(0.1, 20)), max_size=40)


@given(CHUNKS, st.floats(0, 100))
def test_batches_fit_and_nothing_is_lost_or_overtaken(chunks: Any, batch_seconds: float) -> None:
    queue: FairQueue[tuple[int, int, int, float]] = FairQueue()
    for index, (owner, kind, seconds) in enumerate(chunks):
        queue.put(owner, kind, seconds, (owner, index, kind, seconds))
    assert queue.seconds == pytest.approx(sum(seconds for _, _, seconds in chunks))
    taken = []
    while batch := queue.take(batch_seconds):
        assert len({kind for _, _, kind, _ in batch}) == 1
        padded = len(batch) * max(seconds for *_, seconds in batch)
        assert len(batch) == 1 or padded <= batch_seconds
        taken += batch
    assert len(taken) == len(chunks) and not len(queue)
    for owner in range(6):
        order = [index for o, index, _, _ in taken if o == owner]
        assert order == sorted(order)


def test_a_dropped_owner_is_forgotten() -> None:
    queue: FairQueue[str] = FairQueue()
    queue.put("a", 0, 1, "a")
    queue.put("b", 0, 1, "b")
    queue.drop("a")
    assert queue.take(10) == ["b"] and queue.take(10) == []


# --- the engine's loop, with its pipe -----------------------------------------------------------


def torch_without_memory() -> RuntimeError:
    """What torch raises on a CPU, which is no MemoryError."""
    with pytest.raises(RuntimeError) as caught:
        torch.empty(2**60)
    return caught.value


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ValueError("bug"), "failed"),
        (MemoryError(), "out_of_memory"),
        (torch_without_memory(), "out_of_memory"),
        (torch.OutOfMemoryError("CUDA out of memory."), "out_of_memory"),
    ],
)
def test_only_the_recording_that_cannot_be_decoded_fails(library, monkeypatch, error, code) -> None:
    recognize, sizes = library.recognize, []

    def poisoned(chunks, *rest):
        sizes.append(len(chunks))
        if any(chunk.end == 0.5 for chunk in chunks):
            raise error
        return recognize(chunks, *rest)

    monkeypatch.setattr(library, "recognize", poisoned)
    waves = [encode_audio(beeps(i, 0.5 if i == 3 else 0.6)) for i in range(6)]
    with engine(library) as pipe:
        for i, wave in enumerate(waves):
            pipe.send(transcribe(i, wave))
        found = last_messages(pipe, 6)
    assert found.pop(3) == Failed(3, code, "")
    monkeypatch.setattr(library, "recognize", recognize)
    for i, message in found.items():
        assert isinstance(message, Done)
        assert message.transcript.text == library.transcribe(BytesIO(waves[i])).text
    assert max(sizes) > 1, "it was in a batch with others"


def test_what_a_failed_batch_held_is_free_before_its_chunks_are_tried_alone(
    library, monkeypatch
) -> None:
    held: list[weakref.ref[Any]] = []
    alive: list[bool] = []

    def full(chunks, *_):
        alive.append(bool(held) and held[0]() is not None)
        tensor = torch.zeros(3)
        held.append(weakref.ref(tensor))
        raise MemoryError

    monkeypatch.setattr(library, "recognize", full)
    with engine(library, wait=5, batch_seconds=1.0) as pipe:
        for i in range(2):
            pipe.send(transcribe(i, encode_audio(beeps(i, 0.5))))
        assert {m.code for m in last_messages(pipe, 2).values()} == {"out_of_memory"}
    assert alive == [False] * 3


def test_an_error_that_is_found_while_a_partial_text_is_made_harms_no_other(
    library, monkeypatch
) -> None:
    def late(recording):
        if recording.recording.seconds == 0.5:
            recording.error = AudioError("it breaks off")
        return result_of(recording)

    monkeypatch.setattr("serve.engine.process.result_of", late)
    with engine(library) as pipe:
        for i, seconds in enumerate((0.5, 0.6)):
            pipe.send(transcribe(i, encode_audio(beeps(i, seconds)), partials=True))
        found = last_messages(pipe, 2)
    assert found[0] == Failed(0, "unreadable_audio", "it breaks off")
    assert isinstance(found[1], Done)


@contextmanager
def ending() -> Iterator[threading.Event]:
    """An event that is set where the engine process would end."""
    ended = threading.Event()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("serve.engine.process._end", ended.set)
        yield ended


@pytest.mark.parametrize(
    ("text", "code", "ends"),
    [
        ("CUDA error: device-side assert triggered", "failed", True),
        ("CUDA error: an illegal memory access was encountered", "failed", True),
        ("CUDA error: out of memory", "out_of_memory", False),
        ("a bug", "failed", False),
    ],
)
def test_a_process_whose_gpu_is_lost_reports_and_ends(
    library, monkeypatch, text, code, ends
) -> None:
    def lost(*_):
        raise RuntimeError(text)

    monkeypatch.setattr(library, "recognize", lost)
    with engine(library, wait=5, batch_seconds=1.0) as pipe, ending() as ended:
        for i in range(2):
            pipe.send(transcribe(i, encode_audio(beeps(i, 0.5))))
        assert {m.code for m in last_messages(pipe, 2).values()} == {code}
        assert ended.wait(2) is ends


def test_a_process_that_can_accept_nothing_more_ends(library, monkeypatch) -> None:
    def full(*_, **__):
        raise MemoryError

    monkeypatch.setattr(library, "open", full)
    with engine(library) as pipe, ending() as ended:
        pipe.send(transcribe(0, encode_audio(beeps(0, 0.5))))
        assert ended.wait(30)


def test_a_cancelled_request_ends_after_one_step(library, monkeypatch) -> None:
    """Two utterances; one is cancelled at the fifth step. The other's result stays as it was."""
    requests = [Request(), Request()]
    chunks = [
        next(library.open(BytesIO(encode_audio(beeps(i, 4.0))), request=request).chunks())
        for i, request in enumerate(requests)
    ]
    decoder, rows = library.model.decoder, []
    step = decoder.step

    def counted(tokens_BW, state):
        rows.append(len(tokens_BW))
        if len(rows) == 5:
            requests[0].is_cancelled = True
        if len(rows) == 105:
            requests[1].is_cancelled = True
        return step(tokens_BW, state)

    monkeypatch.setattr(decoder, "step", counted)
    segments = library.recognize(chunks)
    assert rows[:5] == [2] * 5 and set(rows[5:]) == {1} and 20 < len(rows) < 105
    assert requests[0].n_steps >= 5 and requests[1].n_steps == len(rows)
    alone = library.transcribe(BytesIO(encode_audio(beeps(1, 4.0))))
    assert segments[1].text == alone.text
    rows[:] = [1] * 100
    requests[0].is_cancelled, requests[1].is_cancelled = True, False
    library.recognize(chunks)
    assert len(rows) == 105


def test_a_cancelled_job_is_not_answered_and_others_are(library, monkeypatch) -> None:
    recognize, cancelled = library.recognize, threading.Event()

    def slow(chunks, *rest):
        if len(chunks) == 1 and chunks[0].end == 2.0:
            cancelled.wait(30)
        return recognize(chunks, *rest)

    monkeypatch.setattr(library, "recognize", slow)
    with engine(library, batch_seconds=0) as pipe:
        pipe.send(transcribe(0, encode_audio(beeps(0, 2.0))))
        pipe.send(transcribe(1, encode_audio(beeps(1, 0.5))))
        pipe.send(transcribe(2, encode_audio(beeps(2, 0.5))))
        pipe.send(Cancel(0))
        pipe.send(Cancel(1))
        cancelled.set()
        assert last_messages(pipe, 1).keys() == {2}


def test_deltas_come_before_the_end_whatever_thread_ends_a_recording(library, monkeypatch) -> None:
    """A thread that reads may find that it was the last one, while a delta is written."""
    send = Engine._send_partial

    def hesitate(loop: Engine, job: Any) -> None:
        wait_for(lambda: job.recording.is_read)
        loop._finish(job)
        send(loop, job)

    monkeypatch.setattr(Engine, "_send_partial", hesitate)
    with engine(library) as pipe:
        pipe.send(transcribe(0, encode_audio(beeps(0, 0.5)), partials=True))
        messages = [pipe.recv() for _ in range(3)]
    kinds = [message for message in messages if isinstance(message, Partial | Done)]
    assert isinstance(kinds[-1], Done)
    assert "".join(m.delta for m in kinds[:-1]) == kinds[-1].transcript.text != ""


def test_long_recordings_are_read_while_they_are_decoded(library, monkeypatch) -> None:
    """A minute in chunks; at most as much is read ahead as is allowed, and a chunk."""
    monkeypatch.setattr("serve.engine.process._AHEAD_SECONDS", 20.0)
    waiting = []

    def silent(chunks, *_):
        waiting.append(sum(chunk.seconds for chunk in chunks))
        return [Segment(c.start, c.end, "", 0.0, "eos", (), (), None) for c in chunks]

    monkeypatch.setattr(library, "recognize", silent)
    with engine(library, batch_seconds=1000, wait=1) as pipe:
        pipe.send(transcribe(0, encode_audio(beeps(0, 59.0))))
        (found,) = last_messages(pipe, 1).values()
    assert isinstance(found, Done) and found.transcript.duration == 59
    assert sum(waiting) == pytest.approx(59) and max(waiting) <= 40 and len(waiting) > 1
