"""Live sessions of a model with a streaming encoder: the library's texts, whoever else speaks."""

import asyncio
import json
import threading
from collections.abc import AsyncGenerator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soxr
from websockets.exceptions import ConnectionClosed

import asr
from asr.normalization import normalize_text
from asr.transcription import stream
from asr.transcription.recognizer import Recognizer
from asr.transcription.transcript import StreamResult
from serve.engine.messages import Audio, BatchDone, Cancel, Done, Failed, Open, Streamed
from serve.errors import unavailable
from serve.routes.sockets import Refusal
from serve.routes.streamed_session import StreamedSession
from tests.helpers import (
    LIVE_START,
    RATE,
    Service,
    answers,
    changed,
    engine,
    live_session,
    pcm,
    running,
    say,
    send_audio,
    stopped,
    transcribe,
    wait_for,
)


@pytest.fixture(scope="module")
def library(streaming_bundle: Path) -> Recognizer:
    return asr.load(streaming_bundle, "cpu")


@pytest.fixture(scope="module")
def streaming_service(streaming_bundle: Path) -> Iterator[Service]:
    with running(streaming_bundle, max_live_sessions=40) as found:
        yield found


def speech(seed: int, n_rows: int = 2, pause: float = 1.5) -> bytes:
    """Rows of tones with silence after each, as PCM."""
    rng, parts = np.random.default_rng(seed), []
    for i in range(n_rows):
        parts += [say(4, seed + i)[0], 0.003 * rng.normal(size=int(pause * RATE))]
    return pcm(np.concatenate(parts))


def results(library: Recognizer, audio: bytes) -> list[StreamResult]:
    return list(library.stream([np.frombuffer(audio, "<i2")]))


def finals(found: list[StreamResult]) -> list[str]:
    return [result.text for result in found if result.is_final]


def final_texts(received: list[dict[str, Any]]) -> list[str]:
    return [m["segment"]["text"] for m in received if m["type"] == "final"]


# --- texts --------------------------------------------------------------------------------------


def test_the_results_are_the_library_s(streaming_service: Service, library: Recognizer) -> None:
    audio = speech(200, 3)
    expected = results(library, audio)
    with live_session(streaming_service) as socket:
        send_audio(socket, audio)
        *received, end = answers(socket)
        assert socket.close_code == 1000
    assert len(finals(expected)) == 3
    assert [m["segment"]["text"] if "segment" in m else m["text"] for m in received] == [
        result.text for result in expected
    ]
    segments = [m["segment"] for m in received if m["type"] == "final"]
    for mine, theirs in zip(segments, (r.segment for r in expected if r.is_final), strict=True):
        assert (mine["start"], mine["end"]) == (theirs.start, theirs.end)
        assert theirs.tokens and len(mine["tokens"]) == len(theirs.tokens)
        for one, other in zip(mine["tokens"], theirs.tokens, strict=True):
            assert (one["start"], one["end"]) == (other.start, other.end)
        assert "".join(w["text"] for w in mine["words"]) == mine["text"]
    assert end["text"] == normalize_text(" ".join(finals(expected)))
    assert end["duration"] == len(audio) / 2 / RATE


def test_text_comes_while_one_speaks(streaming_service: Service, library: Recognizer) -> None:
    audio = speech(210, 2)
    before = streaming_service.metric("asr_audio_seconds_total")
    with live_session(streaming_service) as socket:
        socket.send(audio)  # and no word that it ends
        found = []
        while not found or found[-1]["type"] != "final":
            found.append(json.loads(socket.recv(timeout=60)))
        socket.send('{"type": "end"}')
        rest = answers(socket)
    partials = [m["text"] for m in found if m["type"] == "partial"]
    assert partials and all(b.startswith(a) and a for a, b in pairwise(partials))
    assert final_texts(found + rest) == finals(results(library, audio))
    decoded = streaming_service.metric("asr_audio_seconds_total") - before
    assert decoded == pytest.approx(len(audio) / 2 / RATE, rel=0.3)


@pytest.mark.parametrize("rate", [16000, 44100])
def test_any_rate_will_do(streaming_service: Service, library: Recognizer, rate: int) -> None:
    wave = np.frombuffer(speech(220, 2, 1.2), "<i2") / 2**15
    fine = soxr.resample(wave, RATE, rate)
    with live_session(streaming_service, {**LIVE_START, "sample_rate": rate}) as socket:
        send_audio(socket, pcm(fine), rate)
        received = answers(socket)
    assert final_texts(received) == finals(results(library, pcm(wave)))


def test_silence_and_nothing_have_no_text(streaming_service: Service) -> None:
    for audio in (b"", bytes(8 * RATE)):
        with live_session(streaming_service) as socket:
            send_audio(socket, audio)
            (end,) = answers(socket)
        assert (end["type"], end["text"], end["duration"]) == ("end", "", len(audio) / 2 / RATE)


@pytest.mark.costly
def test_models_of_both_kinds_are_served_together(
    streaming_bundle: Path, trained_bundle: Path, library: Recognizer
) -> None:
    audio = speech(230, 1)
    bundles = (f"old={trained_bundle}", f"new={streaming_bundle}")
    with running(streaming_bundle, bundles=bundles) as service:
        texts = {}
        for model in ("old", "new"):
            with live_session(service, {**LIVE_START, "model": model}) as socket:
                send_audio(socket, audio)
                texts[model] = final_texts(answers(socket))
        assert service.engine.streaming == {"new"}
    assert texts["new"] == finals(results(library, audio))
    assert "".join(texts["old"]) == "".join(texts["new"])


def test_no_session_loses_or_mixes_text_whoever_else_there_is(
    streaming_service: Service, library: Recognizer
) -> None:
    """Of 32 sessions some are killed, some are silent, some are too fast, some are slow."""
    audios = [speech(300 + 7 * i) for i in range(32)]
    expected = [finals(results(library, audio)) for audio in audios[4:]]
    assert len({tuple(texts) for texts in expected}) == 28
    begin = threading.Barrier(32)

    def have(i: int) -> list[str] | None:
        audio = audios[i]
        with live_session(streaming_service) as socket:
            begin.wait(60)
            if i < 2:  # killed in the middle of a word
                socket.send(audio[:RATE])
                socket.socket.close()
                return None
            if i < 4:  # silent, and killed
                begin_end.wait(60)
                socket.socket.close()
                return None
            size = RATE // 2 if i < 16 else 12 * RATE
            for at in range(0, len(audio), size):
                socket.send(audio[at : at + size])
                if i < 8:
                    begin_end.wait(0.01)
            socket.send('{"type": "end"}')
            return final_texts(answers(socket))

    begin_end = threading.Event()
    with ThreadPoolExecutor(32) as pool:
        waiting = [pool.submit(have, i) for i in range(32)]
        found = [each.result(120) for each in waiting[4:]]
        begin_end.set()
    assert found == expected
    wait_for(lambda: not streaming_service.state.n_live and not streaming_service.engine._jobs)
    assert not streaming_service.engine._outbox._parts


# --- limits, and an engine that dies ------------------------------------------------------------


def test_a_session_survives_the_engine_process(
    streaming_service: Service, library: Recognizer
) -> None:
    audio = speech(240, 2)
    expected = finals(results(library, audio))
    with live_session(streaming_service) as socket:
        half = len(audio) // 4 * 2
        socket.send(audio[:half])
        assert json.loads(socket.recv(timeout=60))["type"] == "partial"
        with stopped(streaming_service.engine.pid):
            socket.send(audio[half:])
            wait_for(lambda: streaming_service.engine._jobs)
            streaming_service.engine._process.kill()
        socket.send('{"type": "end"}')
        received = answers(socket)
    assert final_texts(received) == expected
    segments = [m["segment"] for m in received if m["type"] == "final"]
    assert all(a["end"] <= b["start"] for a, b in pairwise(segments))
    assert received[-1]["duration"] == len(audio) / 2 / RATE


def test_an_idle_or_endless_client_gets_the_text_so_far(
    streaming_service: Service, library: Recognizer
) -> None:
    audio = speech(250, 1)
    limits: list[tuple[str, float]] = [("live_idle_seconds", 2.0), ("max_live_seconds", 2.0)]
    for (name, value), code in zip(limits, ("idle", "too_long"), strict=True):
        with changed(streaming_service, **{name: value}):
            with live_session(streaming_service) as socket:
                socket.send(audio)
                *before, last = answers(socket)
            assert last["error"]["code"] == code
            assert final_texts(before) == finals(results(library, audio))


def test_a_flood_is_held_back() -> None:
    """While the engine makes nothing final, a segment and a backlog are held."""

    class Deaf:
        n_bytes = 0

        def __enter__(self) -> "Deaf":
            return self

        def __exit__(self, *_: object) -> None:
            pass

        def send(self, pcm: bytes, is_last: bool = False) -> None:
            self.n_bytes += len(pcm)

        async def news(self) -> Streamed:
            await asyncio.sleep(3600)
            raise AssertionError

    async def flood() -> tuple[int, int]:
        deaf = Deaf()
        session = StreamedSession(RATE, lambda: deaf, 600)  # type: ignore[arg-type,return-value]
        found: AsyncGenerator[StreamResult, None] = session.results()
        reader = asyncio.create_task(anext(found))
        n_taken = 0
        with suppress(TimeoutError):
            async with asyncio.timeout(1):
                while n_taken < 3600:
                    await session.feed(bytes(2 * RATE))
                    n_taken += 1
        reader.cancel()
        return n_taken, deaf.n_bytes // (2 * RATE)

    n_taken, n_sent = asyncio.run(flood())
    assert 20 <= n_taken <= 60 and n_sent == n_taken + 1


def test_a_session_ends_where_the_engine_does_not_come_back() -> None:
    """After its deadline, once audio waits: that of a client who ended, or more than may wait."""

    def gone() -> Any:
        raise unavailable("the model is being loaded: try again soon")

    async def speak(session: StreamedSession, n_seconds: int, reader: asyncio.Task[Any]) -> None:
        for _ in range(n_seconds):
            await session.feed(bytes(2 * RATE))
        await asyncio.sleep(1.5)
        assert not reader.done(), "a client who still speaks may wait"
        await session.end()

    async def wait(n_seconds: int) -> None:
        session = StreamedSession(RATE, gone, deadline_seconds=0.01)
        reader = asyncio.create_task(anext(session.results()))
        speaker = asyncio.create_task(speak(session, n_seconds, reader))
        await asyncio.wait((reader, speaker), return_when=asyncio.FIRST_EXCEPTION)
        speaker.cancel()
        await reader

    for n_seconds in (1, 60):
        with pytest.raises(Refusal, match="not done within"):
            asyncio.run(asyncio.wait_for(wait(n_seconds), 30))


def test_a_session_that_the_engine_has_no_time_for_ends(streaming_service: Service) -> None:
    pid = streaming_service.engine.pid
    with (
        changed(streaming_service, deadline_seconds=0.5),
        live_session(streaming_service) as one,
        stopped(pid),
    ):
        send_audio(one, speech(260, 1))
        *_, last = answers(one)
    assert (one.close_code, last["error"]["code"]) == (1011, "deadline")


def test_one_slot_is_free_again_after_a_client_is_gone(streaming_service: Service) -> None:
    with changed(streaming_service, max_live_sessions=1), live_session(streaming_service) as first:
        first.send(speech(270, 1))
        wait_for(lambda: streaming_service.engine._jobs)
        with live_session(streaming_service) as second, suppress(ConnectionClosed):
            assert json.loads(second.recv(timeout=60))["error"]["code"] == "busy"
        first.socket.close()
        wait_for(lambda: not streaming_service.state.n_live and not streaming_service.engine._jobs)


# --- the engine's loop, with its pipe -----------------------------------------------------------


def say_to(pipe: Any, id: int, audio: bytes) -> None:
    pipe.send(Open(id, "m", RATE))
    pipe.send(Audio(id, audio, is_last=True))


def streamed(pipe: Any, n: int) -> tuple[dict[int, list[str]], set[int], list[int]]:
    """Final texts and failures of so many streams, and the sizes of batches."""
    texts: dict[int, list[str]] = {}
    failed, sizes, n_done = set(), [], 0
    while n_done < n:
        assert pipe.poll(60)
        match pipe.recv():
            case Streamed() as news:
                texts.setdefault(news.id, []).extend(finals(list(news.results)))
                n_done += news.is_last
            case Failed() as message:
                failed.add(message.id)
                n_done += 1
            case BatchDone() as batch:
                sizes.append(batch.n_chunks)
    return texts, failed, sizes


def test_streams_share_batches(library: Recognizer) -> None:
    audios = [speech(400 + 5 * i, 1) for i in range(5)]
    with engine(library) as pipe:
        for i, audio in enumerate(audios):
            say_to(pipe, i, audio)
        texts, failed, sizes = streamed(pipe, 5)
    assert texts == {i: finals(results(library, audio)) for i, audio in enumerate(audios)}
    assert max(sizes) == 5 and not failed


@pytest.mark.parametrize("place", ["encode_chunks", "take"])
def test_only_the_stream_at_fault_fails(
    library: Recognizer, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    audios = [speech(430 + 5 * i, 1) for i in range(4)]
    audios[2] = pcm(np.full(3 * RATE, 0.5))
    expected = {i: finals(results(library, audio)) for i, audio in enumerate(audios)}
    encode, take = stream.encode_chunks, stream.Session.take

    def poisoned(recognizer: Any, states: Any, chunks: Any) -> Any:
        if any(len(c.feats_TF) and c.feats_TF[8:].std(0).max() < 1e-3 for c in chunks):
            raise MemoryError
        return encode(recognizer, states, chunks)

    def poisoned_take(session: Any, chunk: Any) -> Any:
        if session._wave_N[RATE // 2 : RATE].std() == 0:
            raise ValueError("bug")
        return take(session, chunk)

    if place == "take":
        monkeypatch.setattr(stream.Session, "take", poisoned_take)
    else:
        monkeypatch.setattr("serve.engine.streams.encode_chunks", poisoned)
    with engine(library) as pipe:
        for i, audio in enumerate(audios):
            say_to(pipe, i, audio)
        texts, failed, _ = streamed(pipe, 4)
    assert failed == {2}
    assert {i: text for i, text in texts.items() if i != 2} == {
        i: text for i, text in expected.items() if i != 2
    }


def test_a_cancelled_stream_is_forgotten(library: Recognizer) -> None:
    audio = speech(450, 1)
    with engine(library) as pipe:
        pipe.send(Open(0, "m", RATE))
        pipe.send(Audio(0, audio))
        pipe.send(Cancel(0))
        pipe.send(Audio(0, audio, is_last=True))
        say_to(pipe, 1, audio)
        texts, _, _ = streamed(pipe, 1)
        assert not pipe.poll(0.3)
    assert texts[1] == finals(results(library, audio))


def test_recordings_are_in_short_batches_while_streams_wait(
    library: Recognizer,
) -> None:
    def longest(pipe: Any) -> float:
        for i in range(12):
            pipe.send(transcribe(100 + i, speech(460 + i, 2), pcm_rate=RATE))
        seconds, n_done = 0.0, 0
        while n_done < 12:
            assert pipe.poll(60)
            message = pipe.recv()
            n_done += isinstance(message, Done)
            if isinstance(message, BatchDone):
                seconds = max(seconds, message.audio_seconds)
        return seconds

    with engine(library, wait=0.5) as pipe:
        assert longest(pipe) > 30
        pipe.send(Open(0, "m", RATE))
        assert 10 < longest(pipe) <= 20
