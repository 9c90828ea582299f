"""OpenAI's realtime transcription by their own client over a real socket, and by bad clients."""

import base64
import io
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import openai
import pytest
import soundfile as sf
import soxr
from openai.resources.realtime.realtime import RealtimeConnection
from openai.types import realtime as types
from websockets.exceptions import ConnectionClosed, InvalidStatus

import asr
from asr.audio.recording import Recording
from asr.transcription.recognizer import Recognizer
from serve.routes.g711 import as_pcm
from tests.helpers import RATE, Service, changed, pcm, running, say, stopped, wait_for

# OpenAI's client calls websockets in a way that its version 17 deprecates.
pytestmark = pytest.mark.filterwarnings("ignore:connect.. must be used as a context manager")

STARTED, STOPPED = (f"input_audio_buffer.speech_{x}" for x in ("started", "stopped"))
COMMITTED, ADDED = "input_audio_buffer.committed", "conversation.item.added"
DELTA, COMPLETED = (
    f"conversation.item.input_audio_transcription.{x}" for x in ("delta", "completed")
)


@pytest.fixture(scope="module")
def both(streaming_bundle: Path, trained_bundle: Path) -> Iterator[Service]:
    """A service of a model with a streaming encoder and of one without."""
    bundles = (f"new={streaming_bundle}", f"old={trained_bundle}")
    with running(streaming_bundle, bundles=bundles, api_keys="secret") as service:
        yield service


@pytest.fixture(scope="module")
def libraries(streaming_bundle: Path, trained_bundle: Path) -> dict[str, Recognizer]:
    return {"new": asr.load(streaming_bundle, "cpu"), "old": asr.load(trained_bundle, "cpu")}


@contextmanager
def connected(service: Service, **query: str) -> Iterator[RealtimeConnection]:
    url = f"http://{service.host}:{service.port}/v1"
    client = openai.OpenAI(api_key="secret", base_url=url)
    options: Any = {"proxy": None}
    asked = {"intent": "transcription", **query}
    with client.realtime.connect(
        extra_query=asked, websocket_connection_options=options
    ) as connection:
        created = connection.recv()
        assert created.type == "session.created" and created.session.type == "transcription"
        yield connection


def configure(connection: RealtimeConnection, **input: Any) -> Any:
    session: Any = {"type": "transcription", "audio": {"input": input}}
    connection.session.update(session=session)
    return connection.recv()


def as_sent(audio: bytes) -> str:
    return base64.b64encode(audio).decode()


def append(connection: RealtimeConnection, audio: bytes, rate: int = 24000) -> None:
    for at in range(0, len(audio), rate // 5):
        connection.input_audio_buffer.append(audio=as_sent(audio[at : at + rate // 5]))


def until(connection: RealtimeConnection, type: str, n: int = 1) -> list[Any]:
    """Events up to the n-th of a type; each is of the client's own class."""
    found: list[Any] = []
    while sum(event.type == type for event in found) < n:
        found.append(connection.recv())
        assert found[-1].event_id and found[-1].type != "error", found[-1]
    return found


def of(events: Sequence[Any], type: str) -> list[Any]:
    return [event for event in events if event.type == type]


def spoken(seed: int, n_rows: int, noise: float = 0.003) -> tuple[bytes, list[str], list[float]]:
    """Rows of tones with silence behind each at 24 kHz, their texts, and where each begins."""
    rng, parts, texts, starts = np.random.default_rng(seed), [], [], []
    for i in range(n_rows):
        wave, tones = say(4, seed + i)
        starts.append(sum(map(len, parts)) / RATE + tones[0][1])
        parts += [wave, noise * rng.normal(size=int(1.6 * RATE))]
        texts.append("".join(text for text, *_ in tones))
    return pcm(soxr.resample(np.concatenate(parts), RATE, 24000)), texts, starts


# --- the client's own connection ----------------------------------------------------------------


def test_each_utterance_is_an_item_by_server_vad(
    both: Service, libraries: dict[str, Recognizer]
) -> None:
    audio, texts, starts = spoken(500, 3)
    with connected(both) as connection:
        updated = configure(
            connection,
            format={"type": "audio/pcm", "rate": 24000},
            transcription={"model": "new", "language": "zh"},
            turn_detection={"type": "server_vad", "silence_duration_ms": 700},
        )
        assert isinstance(updated, types.SessionUpdatedEvent)
        assert updated.session.audio.input.turn_detection.silence_duration_ms == 700
        assert updated.session.audio.input.transcription.model == "new"
        append(connection, audio)
        events = until(connection, COMPLETED, 3)
    completed = of(events, COMPLETED)
    assert isinstance(completed[0], types.ConversationItemInputAudioTranscriptionCompletedEvent)
    assert [event.transcript for event in completed] == texts
    wave = Recording(asr.Samples(np.frombuffer(audio, "<i2"), 24000), RATE)
    rule = asr.Endpoint(silence_seconds=0.7)
    finals = [r.segment for r in libraries["new"].stream(wave, endpoint=rule) if r.is_final]
    assert [s.text for s in finals] == texts
    for event, segment in zip(completed, finals, strict=True):
        assert event.usage.seconds == pytest.approx(segment.end - segment.start)
    ids, previous = [event.item_id for event in completed], None
    assert len(set(ids)) == 3
    for id, start, segment, text in zip(ids, starts, finals, texts, strict=True):
        own = [e for e in events if getattr(e, "item_id", None) == id]
        kinds = [e.type for e in own if e.type != DELTA]
        assert kinds == [STARTED, STOPPED, COMMITTED, COMPLETED]
        assert abs(of(own, STARTED)[0].audio_start_ms / 1000 - start) < 0.2
        assert of(own, STOPPED)[0].audio_end_ms == round(1000 * segment.end)
        assert "".join(event.delta for event in of(own, DELTA)) == text
        assert own.index(of(own, DELTA)[0]) < own.index(of(own, STOPPED)[0]), "text as one speaks"
        assert of(own, COMMITTED)[0].previous_item_id == previous
        previous = id
    assert [event.item.id for event in of(events, ADDED)] == ids


@pytest.mark.parametrize("model", ["new", "old"])
def test_a_commit_ends_an_item_without_vad(both: Service, model: str) -> None:
    audio, texts, _ = spoken(520, 3)
    with connected(both, model=model) as connection:
        updated = configure(connection, turn_detection=None)
        assert updated.session.audio.input.turn_detection is None
        found = []
        for part in (audio, audio[: len(audio) // 3 // 2 * 2]):
            append(connection, part)
            connection.input_audio_buffer.commit()
            found.append(until(connection, COMPLETED))
    for events in found:
        assert not of(events, STARTED) and len(of(events, COMMITTED)) == 1
        assert len({e.item_id for e in events if hasattr(e, "item_id")}) == 1
    first, second = (of(events, COMPLETED)[0].transcript for events in found)
    assert first.replace(" ", "") == "".join(texts)
    assert "".join(e.delta for e in of(found[0], DELTA)).replace(" ", "") == "".join(texts)
    assert second and first.startswith(second)


def test_server_vad_of_a_model_without_a_streaming_encoder(
    both: Service, libraries: dict[str, Recognizer]
) -> None:
    audio, texts, _ = spoken(540, 2, noise=0.0)  # in noise alone this model guesses
    with connected(both) as connection:
        vad = {"type": "server_vad", "silence_duration_ms": 800}
        configure(connection, transcription={"model": "old"}, turn_detection=vad)
        events, half = [], len(audio) // 4 * 2
        for part in (audio[:half], audio[half:]):
            append(connection, part)
            events += until(connection, COMPLETED)
    stops = [event.audio_end_ms for event in of(events, STOPPED)]
    assert len(stops) == len(of(events, STARTED)) == len(texts)
    for start, stop, done in zip([0, *stops], stops, of(events, COMPLETED), strict=False):
        samples_N = np.frombuffer(audio, "<i2")[24 * start : 24 * stop]
        cut = libraries["old"].transcribe(asr.Samples(samples_N, 24000))
        assert done.transcript == cut.text and cut.text
        last = (cut.segments[-1].tokens or ())[-1]
        assert (stop - start) / 1000 - last.end > 0.3, "it ends in a pause"


def test_a_cleared_buffer_has_no_text(both: Service) -> None:
    audio, texts, _ = spoken(560, 1)
    with connected(both, model="new") as connection:
        configure(connection, turn_detection=None)
        append(connection, spoken(570, 1)[0])
        connection.input_audio_buffer.clear()
        append(connection, audio)
        connection.input_audio_buffer.commit()
        events = until(connection, COMPLETED)
    assert len(of(events, "input_audio_buffer.cleared")) == len(of(events, COMPLETED)) == 1
    assert of(events, COMPLETED)[0].transcript == texts[0]
    with connected(both, model="new") as connection:
        configure(connection, turn_detection=None)
        connection.input_audio_buffer.append(audio=as_sent(bytes(4800)))  # no chunk of it is ready
        connection.input_audio_buffer.clear()
        append(connection, audio)
        connection.input_audio_buffer.commit()
        events = until(connection, COMPLETED)
    assert len(of(events, COMMITTED)) == 1
    assert of(events, COMPLETED)[0].transcript == texts[0]


@pytest.mark.parametrize(("kind", "subtype"), [("audio/pcmu", "ULAW"), ("audio/pcma", "ALAW")])
def test_telephone_audio_and_logprobs(both: Service, kind: str, subtype: str) -> None:
    wave, tones = say(4, 580)
    file = io.BytesIO()
    sf.write(file, wave, RATE, format="RAW", subtype=subtype)
    audio = file.getvalue()
    raw: Any = {"format": "RAW", "subtype": subtype, "channels": 1, "samplerate": RATE}
    every = bytes(range(256))
    expected, _ = sf.read(io.BytesIO(every), dtype="int16", **raw)
    assert as_pcm(every, kind) == expected.astype("<i2").tobytes()
    with connected(both, model="new") as connection:
        session: Any = {
            "type": "transcription",
            "audio": {"input": {"format": {"type": kind}, "turn_detection": None}},
            "include": ["item.input_audio_transcription.logprobs"],
        }
        connection.session.update(session=session)
        connection.input_audio_buffer.append(audio=as_sent(audio))
        connection.input_audio_buffer.commit()
        (done,) = of(until(connection, COMPLETED), COMPLETED)
    assert done.transcript == "".join(text for text, *_ in tones)
    assert "".join(each.token for each in done.logprobs) == done.transcript
    assert all(each.logprob <= 0 for each in done.logprobs)


def test_the_older_session_update(both: Service) -> None:
    audio, texts, _ = spoken(590, 1)
    with connected(both) as connection:
        session = {
            "input_audio_format": "pcm16",
            "input_audio_transcription": {"model": "new"},
            "turn_detection": None,
        }
        event: Any = {"type": "transcription_session.update", "session": session}
        connection.send(event)
        updated = json.loads(connection.recv_bytes())
        assert updated["type"] == "transcription_session.updated"
        assert updated["session"]["input_audio_format"] == "pcm16"
        assert updated["session"]["input_audio_transcription"]["model"] == "new"
        append(connection, audio)
        connection.input_audio_buffer.commit()
        assert of(until(connection, COMPLETED), COMPLETED)[0].transcript == texts[0]


def test_an_update_in_the_middle_loses_no_text(both: Service) -> None:
    (first, texts, _), (second, more, _) = spoken(600, 1), spoken(601, 1)
    first = first[: len(first) - 24000 * 3]  # a tenth of a second behind the last tone
    with connected(both, model="new") as connection:
        append(connection, first)
        vad: Any = {"type": "server_vad", "silence_duration_ms": 600}
        update: Any = {"type": "transcription", "audio": {"input": {"turn_detection": vad}}}
        connection.session.update(session=update)
        append(connection, second)
        events = until(connection, COMPLETED, 2)
    assert [e.transcript for e in of(events, COMPLETED)] == texts + more
    assert len(of(events, "session.updated")) == 1
    assert of(events, STARTED)[1].audio_start_ms >= 1000 * len(first) // 48000


def test_a_commit_of_silence_is_an_item_without_text(both: Service) -> None:
    for vad in ({"type": "server_vad"}, None):
        with connected(both, model="new") as connection:
            configure(connection, turn_detection=vad)
            connection.input_audio_buffer.append(audio=as_sent(bytes(24000)))
            connection.input_audio_buffer.commit()
            events = until(connection, COMPLETED)
        assert [e.transcript for e in of(events, COMPLETED)] == [""]
        assert len(of(events, COMMITTED)) == 1 and not of(events, STARTED)


# --- clients that misbehave ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("event", "code", "param"),
    [
        ("hello", "bad_event", None),
        ("[1]", "bad_event", None),
        (b"\0\0", "bad_event", None),
        ('{"type": "response.create"}', "unknown_event", "type"),
        ("{}", "unknown_event", "type"),
        ('{"type": "input_audio_buffer.append"}', "invalid_value", "audio"),
        ('{"type": "input_audio_buffer.append", "audio": "?"}', "bad_audio", "audio"),
        ('{"type": "input_audio_buffer.append", "audio": "AAAA"}', "bad_audio", "audio"),
        ('{"type": "input_audio_buffer.commit"}', "input_audio_buffer_commit_empty", None),
        ('{"type": "session.update"}', "invalid_value", "session"),
        (
            '{"type": "session.update", "session": {"type": "realtime"}}',
            "invalid_value",
            "session.type",
        ),
        (
            '{"type": "transcription_session.update", "session": {"turn_detection": {"type": 1}}}',
            "invalid_value",
            "session.audio.input.turn_detection.type",
        ),
        (
            '{"type": "session.update", "session": {"audio": {"input": {"transcription": '
            '{"model": "other"}}}}}',
            "model_not_found",
            "model",
        ),
    ],
)
def test_a_faulty_event_is_an_error_and_the_session_goes_on(
    both: Service, event: str | bytes, code: str, param: str | None
) -> None:
    with connected(both, model="new") as connection:
        connection._connection.send(event)
        error = connection.recv()
        assert isinstance(error, types.RealtimeErrorEvent)
        assert (error.error.code, error.error.param) == (code, param)
        assert error.error.type == "invalid_request_error" and "\n" not in error.error.message
        bad: Any = {"type": "input_audio_buffer.commit", "event_id": "mine"}
        connection.send(bad)
        again: Any = connection.recv()
        assert again.error.event_id == "mine"


def last_error(connection: RealtimeConnection) -> tuple[str, list[Any]]:
    """The code of the error that ends a session, and the events before it."""
    events: list[Any] = []
    with suppress(ConnectionClosed):
        while True:
            events.append(connection.recv())
    assert events[-1].type == "error"
    return events[-1].error.code, events[:-1]


def test_what_ends_a_session_comes_after_its_text(both: Service) -> None:
    audio, texts, _ = spoken(620, 1)
    limits: list[tuple[str, float, str]] = [
        ("live_idle_seconds", 2.0, "idle"),
        ("max_live_seconds", 2.0, "too_long"),
    ]
    for name, value, code in limits:
        for vad in ({"type": "server_vad"}, None):
            with changed(both, **{name: value}), connected(both, model="new") as limited:
                configure(limited, turn_detection=vad)
                limited.input_audio_buffer.append(audio=as_sent(audio))
                found, events = last_error(limited)
            assert found == code
            assert [e.transcript for e in of(events, COMPLETED)] == texts
            assert len(of(events, COMMITTED)) == 1


@pytest.mark.parametrize("model", ["old", "new"])
def test_a_large_message_is_taken_and_a_larger_one_answered(both: Service, model: str) -> None:
    audio, texts, _ = spoken(630, 3)
    with connected(both, model=model) as connection:
        configure(connection, turn_detection=None)
        assert len(as_sent(audio)) > 2**18
        connection.input_audio_buffer.append(audio=as_sent(audio))
        connection.input_audio_buffer.commit()
        completed = until(connection, COMPLETED)[-1]
        assert completed.transcript.replace(" ", "") == "".join(texts)
        connection.input_audio_buffer.append(audio=as_sent(bytes(2**20)))
        assert last_error(connection)[0] == "message_too_large"


def test_unknown_models_keys_and_full_services_are_refused(both: Service) -> None:
    url = f"http://{both.host}:{both.port}/v1"
    options: Any = {"proxy": None}
    wrong = openai.OpenAI(api_key="wrong", base_url=url).realtime
    with (
        pytest.raises(InvalidStatus) as caught,
        wrong.connect(model="new", websocket_connection_options=options),
    ):
        pass
    assert caught.value.response.status_code == 401
    right = openai.OpenAI(api_key="secret", base_url=url).realtime
    with right.connect(model="other", websocket_connection_options=options) as connection:
        assert last_error(connection)[0] == "model_not_found"
    with (
        changed(both, max_live_sessions=1),
        connected(both),
        right.connect(model="new", websocket_connection_options=options) as connection,
    ):
        assert last_error(connection)[0] == "busy"


@pytest.mark.costly
def test_a_session_survives_the_engine_process(both: Service) -> None:
    audio, texts, _ = spoken(640, 1)
    with connected(both, model="new") as connection:
        configure(connection, turn_detection=None)
        with stopped(both.engine.pid):
            append(connection, audio)
            wait_for(lambda: both.engine._jobs)
            both.engine._process.kill()
        connection.input_audio_buffer.commit()
        events = until(connection, COMPLETED)
    assert of(events, COMPLETED)[0].transcript == texts[0]
