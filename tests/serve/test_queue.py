"""Who is decoded next and with whom; what leaves; that one bad recording harms no other."""

import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from io import BytesIO
from itertools import pairwise
from multiprocessing import Pipe
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from asr.audio.recording import Recording
from asr.errors import AudioError
from asr.transcription.chunks import ChunkedRecording
from serve.engine.process import Engine
from serve.engine.queue import FairQueue
from tests.helpers import beeps, encode_audio


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
    places = [i for i, item in enumerate(taken) if item.startswith("long")]
    assert len(places) == 3
    assert all(20 < b - a < 50 for a, b in pairwise([0, *places])), "20 s for 5 times 20 s"


PIECES = st.lists(st.tuples(st.integers(0, 5), st.integers(0, 1), st.floats(0.1, 20)), max_size=40)


@given(PIECES, st.floats(0, 100))
def test_batches_fit_and_nothing_is_lost_or_overtaken(pieces: Any, batch_seconds: float) -> None:
    queue: FairQueue[tuple[int, int, int, float]] = FairQueue()
    for number, (owner, kind, seconds) in enumerate(pieces):
        queue.put(owner, kind, seconds, (owner, number, kind, seconds))
    assert queue.seconds == pytest.approx(sum(seconds for _, _, seconds in pieces))
    taken = []
    while batch := queue.take(batch_seconds):
        assert len({kind for _, _, kind, _ in batch}) == 1
        padded = len(batch) * max(seconds for *_, seconds in batch)
        assert len(batch) == 1 or padded <= batch_seconds
        taken += batch
    assert len(taken) == len(pieces) and not len(queue)
    for owner in range(6):
        numbers = [number for o, number, _, _ in taken if o == owner]
        assert numbers == sorted(numbers)


def test_who_leaves_is_forgotten() -> None:
    queue: FairQueue[str] = FairQueue()
    queue.put("a", 0, 1, "a")
    queue.put("b", 0, 1, "b")
    queue.drop("a")
    assert queue.take(10) == ["b"] and queue.take(10) == []


# --- the decoding process's loop, with its pipe -------------------------------------------------


@contextmanager
def decoding(recognizer: Any, batch_seconds: float = 80, wait: float = 0.05) -> Iterator[Any]:
    """A decoder's loop in a thread of this process, at the other end of the pipe that is given."""
    ours, theirs = Pipe()
    patch = pytest.MonkeyPatch()
    patch.setattr("serve.engine.process._end", lambda: None)
    decoder = Engine(theirs, {"m": recognizer}, 60.0, batch_seconds, wait)
    ended = threading.Event()

    def run() -> None:
        while not ended.is_set():
            decoder.turn()

    thread = threading.Thread(target=run)
    decoder.listen()
    thread.start()
    try:
        yield ours
    finally:
        ended.set()
        thread.join()
        ours.close()
        for listening in (t for t in threading.enumerate() if t.name == "asr-pipe"):
            listening.join()  # it ends the process where the patch is gone before it
        patch.undo()


def answers(pipe: Any, n: int) -> dict[int, tuple[Any, ...]]:
    """The last words of so many jobs."""
    found: dict[int, tuple[Any, ...]] = {}
    while len(found) < n:
        assert pipe.poll(60)
        kind, *values = pipe.recv()
        if kind in ("done", "error"):
            found[values[0]] = (kind, *values[1:])
    return found


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
    hear, groups = library.hear, []

    def poisoned(group, *rest):
        groups.append(len(group))
        if any(piece.end == 0.5 for piece in group):
            raise error
        hear(group, *rest)

    monkeypatch.setattr(library, "hear", poisoned)
    waves = [encode_audio(beeps(i, 0.5 if i == 3 else 0.6)) for i in range(6)]
    with decoding(library) as pipe:
        for i, wave in enumerate(waves):
            pipe.send(("job", i, "m", wave, {}))
        found = answers(pipe, 6)
    assert found.pop(3)[:2] == ("error", code)
    monkeypatch.setattr(library, "hear", hear)
    for i, (kind, answer) in found.items():
        assert kind == "done" and answer["text"] == library.transcribe(BytesIO(waves[i])).text
    assert max(groups) > 1, "it was in a batch with others"


def test_what_a_failed_batch_held_is_free_before_its_pieces_are_tried_alone(
    library, monkeypatch
) -> None:
    held: list[weakref.ref[Any]] = []
    alive: list[bool] = []

    def full(group, *_):
        alive.append(bool(held) and held[0]() is not None)
        tensor = torch.zeros(3)
        held.append(weakref.ref(tensor))
        raise MemoryError

    monkeypatch.setattr(library, "hear", full)
    with decoding(library, wait=5, batch_seconds=1.0) as pipe:
        for i in range(2):
            pipe.send(("job", i, "m", encode_audio(beeps(i, 0.5)), {}))
        assert {found[1] for found in answers(pipe, 2).values()} == {"out_of_memory"}
    assert alive == [False] * 3


def test_an_error_that_is_found_while_a_partial_text_is_made_harms_no_other(
    library, monkeypatch
) -> None:
    result = ChunkedRecording.result

    def late(reading):
        if reading.recording.seconds == 0.5:
            reading.error = AudioError("it breaks off")
        return result(reading)

    monkeypatch.setattr(ChunkedRecording, "result", late)
    with decoding(library) as pipe:
        for i, seconds in enumerate((0.5, 0.6)):
            pipe.send(("job", i, "m", encode_audio(beeps(i, seconds)), {"partials": True}))
        found = answers(pipe, 2)
    assert found[0] == ("error", "unreadable_audio", "it breaks off") and found[1][0] == "done"


@contextmanager
def ending() -> Iterator[threading.Event]:
    """What is set where the decoding process would end."""
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
def test_a_process_whose_gpu_is_lost_tells_and_ends(library, monkeypatch, text, code, ends) -> None:
    def lost(*_):
        raise RuntimeError(text)

    monkeypatch.setattr(library, "hear", lost)
    with decoding(library, wait=5, batch_seconds=1.0) as pipe, ending() as ended:
        for i in range(2):
            pipe.send(("job", i, "m", encode_audio(beeps(i, 0.5)), {}))
        assert {found[1] for found in answers(pipe, 2).values()} == {code}
        assert ended.wait(2) is ends


def test_a_process_that_can_take_nothing_more_ends(library, monkeypatch) -> None:
    def full(*_):
        raise MemoryError

    monkeypatch.setattr(library, "reading", full)
    with decoding(library) as pipe, ending() as ended:
        pipe.send(("job", 0, "m", encode_audio(beeps(0, 0.5)), {}))
        assert ended.wait(30)


def test_who_leaves_while_decoding_is_gone_after_one_step(library, monkeypatch) -> None:
    """Two utterances; one is wanted until the fifth step. The other's result stays as it was."""
    readings = [
        ChunkedRecording(Recording(BytesIO(encode_audio(beeps(i, 4.0))), 16000), 20.0)
        for i in range(2)
    ]
    group = [next(reading.pieces()) for reading in readings]
    decoder, rows = library.model.decoder, []
    step = decoder.step

    def counted(tokens_BW, state):
        rows.append(len(tokens_BW))
        return step(tokens_BW, state)

    monkeypatch.setattr(decoder, "step", counted)
    library.hear(group, library.config.decoding, lambda i: i == 0 and len(rows) >= 5)
    assert rows[:5] == [2] * 5 and set(rows[5:]) == {1} and len(rows) > 20
    alone = library.transcribe(BytesIO(encode_audio(beeps(1, 4.0))))
    assert readings[1].segments[0].text == alone.text
    rows.clear()
    library.hear(group, library.config.decoding, lambda _: len(rows) >= 5)
    assert len(rows) == 5


def test_a_job_that_is_left_is_not_answered_and_others_are(library, monkeypatch) -> None:
    hear, left = library.hear, threading.Event()

    def slow(group, search, is_cancelled):
        if len(group) == 1 and group[0].end == 2.0:
            left.wait(30)
        hear(group, search, is_cancelled)

    monkeypatch.setattr(library, "hear", slow)
    with decoding(library, batch_seconds=0) as pipe:
        pipe.send(("job", 0, "m", encode_audio(beeps(0, 2.0)), {}))
        pipe.send(("job", 1, "m", encode_audio(beeps(1, 0.5)), {}))
        pipe.send(("job", 2, "m", encode_audio(beeps(2, 0.5)), {}))
        pipe.send(("leave", 0))
        pipe.send(("leave", 1))
        left.set()
        assert answers(pipe, 1).keys() == {2}


def test_long_recordings_are_read_as_they_are_decoded(library, monkeypatch) -> None:
    """A minute in pieces; at most as much is read ahead as is allowed, and a piece."""
    monkeypatch.setattr("serve.engine.process._AHEAD_SECONDS", 20.0)
    waiting = []

    def silent(group, *_):
        waiting.append(sum(piece.end - piece.start for piece in group))
        for reading, start, end, _ in group:
            reading.segments.append(
                SimpleNamespace(start=start, end=end, text="", score=0.0, ended="eos", tokens=None)
            )

    monkeypatch.setattr(library, "hear", silent)
    monkeypatch.setattr(ChunkedRecording, "result", lambda self: SimpleNamespace(
        text="", segments=(), as_dict=lambda: {"duration": self.recording.seconds}))  # fmt: skip
    with decoding(library, batch_seconds=1000) as pipe:
        pipe.send(("job", 0, "m", encode_audio(beeps(0, 59.0)), {}))
        found = answers(pipe, 1)
    assert found[0][1]["duration"] == 59 and sum(waiting) == 59 and max(waiting) <= 60
