"""Live transcription over a real socket: the library's texts, limits, and bad clients."""

import asyncio
import base64
import io
import json
import shutil
import subprocess
import sys
import tracemalloc
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import soundfile as sf
from websockets.exceptions import InvalidStatus
from websockets.sync.client import ClientConnection, connect

import asr
from asr.bundle import load_bundle_config, write_bundle_config
from asr.evaluation.tune import write_decoding
from asr.normalization import normalize_text
from asr.transcription.recognizer import Recognizer
from asr.transcription.transcript import Segment, Token, Transcript
from serve.routes.live_session import Session
from tests.helpers import (
    LIVE_START,
    RATE,
    TONES,
    answers,
    changed,
    live_session,
    pcm,
    refused,
    running,
    say,
    send_audio,
    stopped,
    wait_for,
)


@pytest.fixture(scope="module")
def library(trained_bundle: Path) -> Recognizer:
    return asr.load(trained_bundle, "cpu")


def recording(n_seconds: float, seed: int = 0) -> bytes:
    """Tones and pauses of so many seconds, as PCM."""
    wave = np.concatenate([say(6, seed + i)[0] for i in range(round(n_seconds))])
    return pcm(wave[: int(n_seconds * RATE)])


def recognized(library: Recognizer, audio: bytes, **changes: Any) -> str:
    file = io.BytesIO()
    sf.write(file, np.frombuffer(audio, "<i2"), RATE, format="WAV", subtype="PCM_16")
    return library.transcribe(file, library.config.decoding.changed(changes)).text


def refusal(socket: ClientConnection) -> tuple[int, dict[str, Any], list[dict[str, Any]]]:
    """The close code, the error in OpenAI's shape, and what came before it."""
    *before, last = answers(socket)
    error = last["error"]
    assert last.keys() == {"error"}
    assert error.keys() == {"message", "type", "param", "code"}
    assert "\n" not in error["message"] and "Traceback" not in error["message"]
    assert socket.close_code is not None
    return socket.close_code, error, before


# --- texts --------------------------------------------------------------------------------------


def test_segments_have_the_text_of_the_library(trained_service, library):
    audio = recording(26)
    with live_session(trained_service) as socket:
        send_audio(socket, audio)
        *received, end = answers(socket)
        assert socket.close_code == 1000
    texts = [m["segment"]["text"] for m in received if m["type"] == "final"]
    assert (end["type"], end["duration"]) == ("end", 26.0)
    assert end["text"] == normalize_text(" ".join(texts))
    shown = [line for line in end["srt"].splitlines() if line[:1] in TONES]
    assert "".join(shown) == "".join(texts).replace(" ", "")
    assert end["vtt"].startswith("WEBVTT\n\n00:00:0")
    finals = [message["segment"] for message in received if message["type"] == "final"]
    assert len(finals) > 2 and (finals[0]["start"], finals[-1]["end"]) == (0, 26)
    assert all(a["end"] == b["start"] for a, b in pairwise(finals))
    for segment in finals:
        assert segment["end"] - segment["start"] <= 10
        first, last = (2 * round(segment[key] * RATE) for key in ("start", "end"))
        assert segment["text"] == recognized(library, audio[first:last])
        assert normalize_text("".join(t["text"] for t in segment["tokens"])) == segment["text"]
        assert normalize_text("".join(w["text"] for w in segment["words"])) == segment["text"]
        times = [t for token in segment["tokens"] for t in (token["start"], token["end"])]
        assert times == sorted(times)
        assert segment["start"] <= times[0] and times[-1] <= segment["end"]
    assert sum(len(segment["text"]) for segment in finals) > 60


def test_what_is_too_uncertain_is_told_at_the_end(trained_bundle, tmp_path):
    """A live segment of several pieces, all of which the model is not sure enough of."""
    copy = Path(shutil.copytree(trained_bundle, tmp_path / "unsure"))
    config = load_bundle_config(copy)
    unsure = config.decoding.changed({"confidence_threshold": 0.9999, "chunk_seconds": 3.0})
    write_bundle_config(copy, config.model_copy(update={"decoding": unsure}))
    with running(copy) as service, live_session(service) as socket:
        send_audio(socket, recording(12))
        *received, end = answers(socket)
        assert socket.close_code == 1000
    finals = [message["segment"] for message in received if message["type"] == "final"]
    left_out = [segment for segment in finals if segment["ended"] == "uncertain"]
    assert len(left_out) > 2 and all(segment["nbest"][1]["text"] for segment in left_out)
    for segment, warning in zip(left_out, end["warnings"], strict=True):
        assert warning.startswith(f"{segment['start']:.1f} to {segment['end']:.1f} s: left out")
        assert warning.endswith(segment["nbest"][1]["text"])


def test_partial_texts_grow_while_one_speaks(trained_service, library):
    audio = recording(3, seed=50)
    with live_session(trained_service) as socket:
        partials = []
        for at in range(0, len(audio), 2 * RATE):  # a second, then its text
            socket.send(audio[at : at + 2 * RATE])
            partials.append(json.loads(socket.recv(timeout=60)))
        socket.send('{"type": "end"}')
        final, _ = answers(socket)
    assert [p["type"] for p in partials] == ["partial"] * 3
    for i, partial in enumerate(partials, 1):
        assert partial["text"] == recognized(library, audio[: i * 2 * RATE], method="ctc_greedy")
    assert len(partials[0]["text"]) < len(partials[-1]["text"])
    assert final["segment"]["text"] == recognized(library, audio)
    assert final["segment"]["nbest"][0]["text"] == final["segment"]["text"]


def test_partial_texts_come_without_the_bundle_s_language_model(trained_bundle, library, tmp_path):
    tuned = shutil.copytree(trained_bundle, tmp_path / "tuned")
    arpa = tuned / "tones.arpa"
    words = [f"-0.8 {word}" for word in ("</s>", "<unk>", *TONES)]
    head = ["\\data\\", f"ngram 1={len(words) + 1}", "", "\\1-grams:", "-99 <s>"]
    arpa.write_text("\n".join([*head, *words, "", "\\end\\", ""]), "utf-8")
    write_decoding(tuned, library.config.decoding.changed({"lm": arpa, "lm_weight": 0.1}))
    audio = recording(2, seed=50)
    with running(tuned) as service, live_session(service) as socket:
        socket.send(audio)
        partial = json.loads(socket.recv(timeout=60))
        socket.send('{"type": "end"}')
        *_, final, _ = answers(socket)
        assert service.metric("asr_engine_restarts_total") == 0
    assert partial["text"] == recognized(library, audio, method="ctc_greedy")
    assert final["type"] == "final" and final["segment"]["text"]


@pytest.mark.parametrize("rate", [16000, 44100, 48000])
def test_any_rate_will_do(trained_service, library, rate):
    wave, spoken = say(5, 7)
    fine = np.interp(np.arange(0, len(wave), RATE / rate), np.arange(len(wave)), wave)
    with live_session(trained_service, {**LIVE_START, "sample_rate": rate}) as socket:
        send_audio(socket, pcm(fine), rate)
        found = [m["segment"]["text"] for m in answers(socket) if m["type"] == "final"]
    assert found == ["".join(text for text, _, _ in spoken)] == [recognized(library, pcm(wave))]


def test_silence_and_nothing_have_no_text(trained_service):
    with live_session(trained_service) as socket:
        send_audio(socket, bytes(2 * RATE))
        (final, _end) = (m for m in answers(socket) if m["type"] != "partial")
    assert (final["segment"]["text"], final["segment"]["ended"]) == ("", "no_speech")
    with live_session(trained_service) as socket:
        send_audio(socket, b"")
        end = {"type": "end", "duration": 0.0, "text": "", "srt": "", "vtt": "WEBVTT\n\n",
               "warnings": []}  # fmt: skip
        assert answers(socket) == [end]


# --- clients that misbehave ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("messages", "close_code", "code", "param"),
    [
        (["hello"], 1007, "invalid_message", None),
        (["[" * 50000], 1007, "invalid_message", None),
        (["[]"], 1007, "invalid_message", None),
        (['{"model": "tiny"}'], 1007, "invalid_message", "sample_rate"),
        (['{"model": "tiny", "sample_rate": 0}'], 1007, "invalid_message", "sample_rate"),
        (['{"model": "tiny", "sample_rate": 1e400}'], 1007, "invalid_message", "sample_rate"),
        (['{"model": "../x", "sample_rate": 8000}'], 1008, "model_not_found", "model"),
        ([b"\0\0"], 1003, "invalid_message", None),
        ([json.dumps(LIVE_START), b"\0\0\0"], 1007, "invalid_message", None),
        ([json.dumps(LIVE_START), b"\0" * (2**17 + 2)], 1009, "message_too_large", None),
        ([json.dumps(LIVE_START), "x" * (2**17 + 2)], 1009, "message_too_large", None),
        ([json.dumps(LIVE_START), '{"type": "stop"}'], 1003, "invalid_message", None),
        ([json.dumps(LIVE_START), "end"], 1007, "invalid_message", None),
    ],
)
def test_what_cannot_be_understood_is_refused(trained_service, messages, close_code, code, param):
    with live_session(trained_service, None) as socket:
        for message in messages:
            socket.send(message)
        found, error, before = refusal(socket)
    assert (found, error["code"], error["param"], before) == (close_code, code, param, [])
    assert error["type"] == "invalid_request_error"


def test_an_idle_client_gets_the_text_so_far(trained_service, library):
    audio = recording(2)
    with changed(trained_service, live_idle_seconds=2.0):
        with live_session(trained_service) as socket:
            socket.send(audio)
            code, error, before = refusal(socket)
        assert (code, error["code"]) == (1008, "idle") and "2 seconds" in error["message"]
        assert before[-1]["segment"]["text"] == recognized(library, audio)
        with live_session(trained_service, None) as socket:
            assert refusal(socket)[0] == 1008


def test_a_client_that_speaks_too_long_gets_the_text_so_far(trained_service, library):
    audio = recording(4)
    with changed(trained_service, max_live_seconds=3), live_session(trained_service) as socket:
        for at in range(0, len(audio), RATE):
            socket.send(audio[at : at + RATE])
        code, error, before = refusal(socket)
    assert (code, error["code"]) == (1009, "too_long") and "3 seconds" in error["message"]
    assert before[-1]["type"] == "final" and before[-1]["segment"]["end"] == 3.5
    assert before[-1]["segment"]["text"] == recognized(library, audio[: 7 * RATE])


def test_the_slot_of_a_client_that_disconnects_is_free(trained_service):
    state = trained_service.state
    with changed(trained_service, max_live_sessions=1), stopped(trained_service.engine.pid):
        with live_session(trained_service) as first:
            first.send(recording(2))
            wait_for(lambda: trained_service.engine._jobs)
            with live_session(trained_service) as second:
                code, error, _ = refusal(second)
            assert (code, error["code"], error["type"]) == (1013, "busy", "server_error")
            first.socket.close()  # as a browser that crashed
        wait_for(lambda: not state.n_live and not trained_service.engine._jobs)
        assert state.load.n_accepted == 0


def test_a_service_that_stops_ends_sessions(trained_service, library):
    audio = recording(2)
    with live_session(trained_service) as socket:
        socket.send(audio[:RATE])
        wait_for(lambda: trained_service.state.load.n_accepted)
        trained_service.state.load.draining = True
        try:
            socket.send(audio[RATE:])
            code, error, before = refusal(socket)
            with live_session(trained_service) as late:
                assert refusal(late)[0] == 1013
        finally:
            trained_service.state.load.draining = False
    assert (code, error["code"]) == (1001, "unavailable")
    last = before[-1]["segment"]  # of what had come by then
    assert last["text"] == recognized(library, audio[: 2 * round(last["end"] * RATE)])


def test_a_segment_survives_the_engine_process(trained_service, library):
    audio = recording(2)
    with live_session(trained_service) as socket:
        with stopped(trained_service.engine.pid):
            send_audio(socket, audio)
            wait_for(lambda: trained_service.engine._jobs)
            trained_service.engine._process.kill()
        *_, final, end = answers(socket)
    assert final["segment"]["text"] == recognized(library, audio)
    assert end["type"] == "end"


WITHOUT_MEMORY = """
import sys
from multiprocessing.connection import Connection
from serve.engine import messages

pipe = Connection(int(sys.argv[1]))
pipe.recv()
pipe.send(messages.Ready())
while True:
    message = pipe.recv()
    if isinstance(message, messages.Transcribe):
        pipe.send(messages.Failed(message.id, "out_of_memory", ""))
"""


def test_a_recording_that_the_memory_does_not_hold_is_refused_and_not_tried_again(
    tiny_bundle, monkeypatch
):
    popen = subprocess.Popen

    def start(command: list[str], **options: Any) -> subprocess.Popen[bytes]:
        return popen([sys.executable, "-c", WITHOUT_MEMORY, command[-1]], **options)

    monkeypatch.setattr(
        "serve.engine.client.subprocess", SimpleNamespace(Popen=start, PIPE=subprocess.PIPE)
    )
    with running(tiny_bundle, deadline_seconds=5.0) as service:
        reply = service.post(recording(2))
        assert "shorter parts" in refused(reply, 413, "file", "out_of_memory")
        assert "retry-after" not in reply.headers
        with live_session(service) as socket:
            send_audio(
                socket, recording(2)[:RATE]
            )  # too short for a partial text: all of it is sent
            code, error, _ = refusal(socket)
    assert (code, error["code"]) == (1011, "out_of_memory")


def test_a_flood_is_held_back() -> None:
    """While nothing is decoded, at most a segment and a backlog are held."""

    async def flood() -> int:
        async def never(_audio: bytes, _quick: bool) -> Transcript:
            await asyncio.sleep(3600)
            raise AssertionError

        session = Session(RATE, never)
        reader = asyncio.create_task(anext(session.results()))
        n_taken = 0
        try:
            async with asyncio.timeout(1):
                while n_taken < 3600:
                    await session.feed(bytes(2 * RATE))
                    n_taken += 1
        except TimeoutError:
            pass
        reader.cancel()
        return n_taken

    assert 10 <= asyncio.run(flood()) <= 60


def test_a_small_message_copies_nothing_of_what_is_held() -> None:
    async def peaks() -> list[int]:
        session = Session(RATE, lambda *_: pytest.fail("no text is due"))
        await session.feed(recording(30))
        found = []
        for _ in range(50):
            before, _ = tracemalloc.get_traced_memory()
            tracemalloc.reset_peak()
            await session.feed(b"\0\0")
            found.append(tracemalloc.get_traced_memory()[1] - before)
        return found

    tracemalloc.start()
    try:
        assert sorted(asyncio.run(peaks()))[25] < RATE, "half a second of the 30 that are held"
    finally:
        tracemalloc.stop()


def test_a_key_is_required_where_keys_are_set(trained_bundle):
    def offered(key: str) -> dict[str, Any]:
        text = base64.urlsafe_b64encode(key.encode()).decode().rstrip("=")
        return {"subprotocols": ["lrt-asr", f"bearer.{text}"]}

    with running(trained_bundle, api_keys="höchst geheim,密钥à,b") as service:
        for options in (
            {},
            offered("密"),
            offered("höchst"),
            {"subprotocols": ["lrt-asr", "bearer.Yg"[:-1]]},
            {"subprotocols": ["lrt-asr", "openai-insecure-api-key.c"]},
            {"additional_headers": {"authorization": "Bearer a"}},
        ):
            with pytest.raises(InvalidStatus) as caught, live_session(service, None, **options):
                pass
            assert caught.value.response.status_code == 401
        header = {"authorization": "Bearer 密钥à".encode()}
        assert service.client.get("/v1/models", headers=header).status_code == 200
        for options in (
            {"subprotocols": ["lrt-asr", "bearer.Yg"]},
            {"subprotocols": ["lrt-asr", "openai-insecure-api-key.b"]},
            offered("höchst geheim"),
            offered("密钥à"),
            {"additional_headers": {"authorization": "Bearer b"}},
        ):
            with live_session(service, **options) as socket:
                send_audio(socket, b"")
                assert answers(socket)[-1]["type"] == "end"


def test_a_pause_ends_a_segment_though_no_more_audio_comes() -> None:
    """The last audio is less than what a new partial text waits for while audio arrives."""

    async def transcribe(audio: bytes, _: bool) -> Transcript:
        seconds = len(audio) / 2 / RATE
        token = Token("一", 0.0, 0.2)
        segment = Segment(0.0, seconds, "一", 0.0, "eos", (5,), (1.0,), (token,))
        return Transcript("一", 0.0, seconds, segments=(segment,))

    async def first_final() -> Segment:
        session = Session(RATE, transcribe, silence_seconds=0.8)
        found = session.results()
        await session.feed(bytes(round(2 * 0.8 * RATE)))
        assert not (await anext(found)).is_final, "0.6 s of silence are too few"
        await session.feed(bytes(round(2 * 0.5 * RATE)))
        async with asyncio.timeout(5):
            return (await anext(found)).segment

    assert 0.8 < asyncio.run(first_final()).end < 1.3


def test_a_socket_that_does_not_exist_is_no_failure_of_the_service(trained_service):
    url = f"ws://{trained_service.host}:{trained_service.port}/v1/none"
    with pytest.raises(InvalidStatus) as caught, connect(url, proxy=None):
        pass
    assert caught.value.response.status_code == 404
    assert "/v1/none" in json.loads(caught.value.response.body)["error"]["message"]
    metrics = trained_service.client.get("/metrics").text
    assert 'method="GET",route="none",status="404"} ' in metrics
