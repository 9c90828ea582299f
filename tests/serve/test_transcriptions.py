"""What the service says: the library's texts, in every shape that clients ask for."""

import asyncio
import io
import json
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import httpx
import numpy as np
import openai
import pytest

from asr.cli import main
from asr.normalization import normalize_text
from asr.transcription.writers import as_srt, as_vtt
from serve.engine.messages import Partial
from serve.errors import ApiError
from serve.logs import RequestRecord
from serve.routes.transcriptions import _as_stream
from tests.helpers import URL, beeps, encode_audio, running, started, stopped, wait_for


@pytest.mark.parametrize(
    ("rate", "channels", "kind"),
    [
        (16000, 1, "WAV PCM_16"), (8000, 1, "WAV ULAW"), (44100, 2, "WAV PCM_24"),
        (192000, 6, "WAV FLOAT"), (16000, 1, "FLAC PCM_16"), (22050, 2, "FLAC PCM_24"),
        (48000, 1, "OGG VORBIS"), (16000, 1, "MP3 MPEG_LAYER_III"), (16000, 1, "RF64 PCM_16"),
        (16000, 1, "WAVEX PCM_U8"), (16000, 1, "WAV DOUBLE"), (11025, 1, "WAV ALAW"),
    ],
)  # fmt: skip
def test_text_is_the_librarys(service, library, rate, channels, kind):
    recording = encode_audio(beeps(rate, 0.6, rate, channels), rate, *kind.split())
    expected = library.transcribe(io.BytesIO(recording))
    reply = service.post(recording)
    assert reply.status_code == 200, reply.text
    answer = {"text": expected.text, "usage": {"type": "duration", "seconds": expected.duration}}
    if expected.warnings:
        answer["warnings"] = list(expected.warnings)
    assert expected.text and reply.json() == answer


@pytest.fixture(scope="module")
def long_recording():
    """24 seconds of beeps and pauses: two chunks."""
    parts = [np.concatenate((beeps(i, 1.8), np.zeros((3200, 1)))) for i in range(12)]
    return encode_audio(np.concatenate(parts))


@pytest.fixture(scope="module")
def openai_client(service):
    with openai.OpenAI(
        base_url=f"{service.client.base_url}/v1", api_key="any", max_retries=0,
        http_client=openai.DefaultHttpxClient(trust_env=False),
    ) as client:  # fmt: skip
        yield client


@pytest.mark.costly
def test_the_official_client_in_every_format(openai_client, library, long_recording):
    expected = library.transcribe(io.BytesIO(long_recording))
    create = openai_client.audio.transcriptions.create
    file = ("a.wav", long_recording)
    plain = create(model="tiny", file=file, include=["logprobs"])
    assert plain.text == expected.text and plain.usage.seconds == 24
    assert "".join(each.token for each in plain.logprobs).strip() == expected.text
    assert all(each.logprob <= 0 for each in plain.logprobs)
    assert create(model="tiny", file=file, response_format="text") == expected.text
    assert create(model="tiny", file=file, response_format="srt") == as_srt(expected)
    assert create(model="tiny", file=file, response_format="vtt") == as_vtt(expected)
    verbose = create(
        model="tiny", file=file, response_format="verbose_json", language="zh",
        timestamp_granularities=["word", "segment"],
    )  # fmt: skip
    assert (verbose.text, verbose.duration, verbose.language) == (expected.text, 24, "zh")
    assert [s.text for s in verbose.segments] == [s.text for s in expected.segments]
    assert [(s.start, s.end) for s in verbose.segments] == [
        (s.start, s.end) for s in expected.segments
    ]
    for number, segment in enumerate(verbose.segments):
        assert segment.id == number and segment.avg_logprob < 0 < segment.compression_ratio
        assert len(segment.tokens) == len(segment.text) and segment.no_speech_prob == 0
    assert "".join(w.word for w in verbose.words) == expected.text.replace(" ", "")
    starts = [w.start for w in verbose.words]
    assert starts == sorted(starts) and starts[-1] > 20
    verbose = create(model="tiny", file=file, response_format="verbose_json")
    assert verbose.words is None and len(verbose.segments) == len(expected.segments) == 2


@pytest.mark.costly
def test_the_official_client_streams(openai_client, library, long_recording):
    expected = library.transcribe(io.BytesIO(long_recording))
    stream = openai_client.audio.transcriptions.create(
        model="tiny", file=("a.wav", long_recording), stream=True
    )
    *deltas, done = list(stream)
    assert 1 <= len(deltas) <= len(expected.segments)
    assert {d.type for d in deltas} == {"transcript.text.delta"}
    assert 0 < deltas[0].progress <= deltas[-1].progress == 1
    assert "".join(d.delta for d in deltas) == expected.text == done.text
    assert done.type == "transcript.text.done" and done.usage.seconds == 24


def test_the_official_client_sees_its_errors(openai_client):
    create, wav = openai_client.audio.transcriptions.create, ("a.wav", encode_audio(beeps(1)))
    with pytest.raises(openai.NotFoundError) as error:
        create(model="whisper-2", file=wav)
    assert (error.value.code, error.value.param) == ("model_not_found", "model")
    with pytest.raises(openai.BadRequestError, match="'diarized_json'"):
        create(model="tiny", file=wav, response_format="diarized_json")
    with pytest.raises(openai.BadRequestError, match="needs response_format verbose_json"):
        create(model="tiny", file=wav, timestamp_granularities=["word"])
    for stream in (False, True):
        with pytest.raises(openai.APIStatusError, match="not a recording") as error:
            create(model="tiny", file=("a.wav", b"junk"), stream=stream)
        assert error.value.status_code == 415


def test_the_official_client_lists_models(openai_client):
    assert [model.id for model in openai_client.models.list()] == ["tiny"]
    assert openai_client.models.retrieve("tiny").created > 0
    with pytest.raises(openai.NotFoundError):
        openai_client.models.retrieve("whisper-1")


@pytest.mark.costly
def test_whisper_1_is_the_first_model(service, tiny_bundle, trained_bundle):
    wave = encode_audio(beeps(1))
    reply = service.post(wave, model="whisper-1")
    assert reply.status_code == 200 and reply.json() == service.post(wave).json()
    assert service.post(wave, "/v1/transcribe", model="whisper-1").json()["model"] == "tiny"
    with running(tiny_bundle, bundles=(f"b={tiny_bundle}", f"whisper-1={trained_bundle}")) as two:
        found = two.post(wave, "/v1/transcribe", model="whisper-1").json()
    assert found["model"] == "whisper-1", "a model of that name comes first"


def test_an_error_in_a_stream_is_its_last_event():
    async def events():
        yield Partial(0, "今天", 0.5)
        yield Partial(0, "天气", 1.0)
        raise ApiError(503, "it died", code="unavailable")

    async def read():
        request, coming = SimpleNamespace(scope={"asr.record": RequestRecord()}), events()
        first = await anext(coming)
        return [event async for event in _as_stream(request, first, coming, None)]

    sent = [json.loads(event.removeprefix("data: ")) for event in asyncio.run(read())]
    assert [event.get("delta") for event in sent] == ["今天", "天气", None]
    assert sent[-1]["error"]["code"] == "unavailable"


def test_the_native_route_returns_all_that_is_known(service, library, long_recording):
    short = encode_audio(beeps(2))
    expected = library.transcribe(io.BytesIO(short))
    found = service.post(short, "/v1/transcribe").json()
    assert found["text"] == expected.text and found["model"] == "tiny"
    (segment,) = found["segments"]
    assert found["ended"] == segment["ended"] == expected.segments[0].ended
    assert [n["text"] for n in segment["nbest"]] == [n.text for n in expected.nbest]
    for one, wanted in zip(segment["nbest"], expected.nbest, strict=True):
        assert one["score"] == pytest.approx(wanted.score, abs=1e-4)
        assert one["confidences"] == pytest.approx(wanted.confidences, abs=1e-4)
        assert one["tokens"] == list(wanted.tokens)
    assert segment["token_ids"] == list(expected.segments[0].token_ids)
    assert segment["tokens"] and found["timing"]["decode_seconds"] > 0
    assert normalize_text("".join(word["text"] for word in segment["words"])) == expected.text
    assert min(word["confidence"] for word in segment["words"]) == min(segment["confidences"])
    assert (found["srt"], found["vtt"]) == (as_srt(expected), as_vtt(expected))
    assert found["timing"]["real_time_factor"] == pytest.approx(
        found["timing"]["decode_seconds"] / found["duration"]
    )
    found = service.post(long_recording, "/v1/transcribe").json()
    assert [segment["nbest"] for segment in found["segments"]] == [[], []]
    silence = service.post(encode_audio(np.zeros((16000, 1))), "/v1/transcribe").json()
    assert (silence["text"], silence["ended"]) == ("", "no_speech")


def test_the_native_route_streams(service, library, long_recording):
    expected = library.transcribe(io.BytesIO(long_recording))
    reply = service.post(long_recording, "/v1/transcribe", stream="true")
    assert reply.headers["content-type"].startswith("text/event-stream")
    events = [json.loads(line[6:]) for line in reply.text.split("\n\n") if line]
    *deltas, done = events
    assert "".join(d["delta"] for d in deltas) == expected.text == done["text"]
    progress = [delta["progress"] for delta in deltas]
    assert progress == sorted(progress) and progress[-1] == 1
    assert done["type"] == "transcript.done" and done["srt"] == as_srt(expected)
    assert len(done["segments"]) == 2 and done["timing"]["decode_seconds"] > 0


def test_what_other_clients_send_too_is_accepted(service, library):
    wave = encode_audio(beeps(3))
    fields = {
        "language": "zh", "prompt": "我们打十点去公园" * 3, "temperature": "0.2", "stream": "false",
        "chunking_strategy": "auto", "include[]": "logprobs", "hotwords": "",
    }  # fmt: skip
    expected = library.transcribe(io.BytesIO(wave)).text
    for name in ("../../etc/passwd", "/etc/passwd", "x" * 4000, "\u202egpj.exe", "a\r\nX: y", "a"):
        reply = service.client.post(
            URL,
            files={"file": (name, wave, "application/octet-stream")},
            data={"model": "tiny", **fields},
            headers={"authorization": "Bearer whatever"},
        )
        assert reply.json()["text"] == expected


def test_odd_recordings_are_answered(service):
    assert service.post(encode_audio(np.zeros((1, 1)))).json()["text"] == ""
    cut = service.post(encode_audio(beeps(5))[:-4000]).json()
    assert cut["text"] and "truncated" in cut["warnings"][0]
    loud = 1e30 * beeps(5)
    assert service.post(encode_audio(loud, subtype="FLOAT")).json()["text"]
    for format in ("srt", "verbose_json"):
        empty = service.post(encode_audio(np.zeros((8000, 1))), response_format=format)
        assert empty.status_code == 200
        assert empty.text == "" or empty.json()["text"] == ""


def test_many_at_once_get_their_own_texts(service, library):
    waves = [encode_audio(beeps(i, 0.3 + 0.04 * (i % 30))) for i in range(60)]
    expected = [library.transcribe(io.BytesIO(wave)).text for wave in waves]
    assert len(set(expected)) >= 40
    before = service.metric("asr_batch_chunks_count")
    with ThreadPoolExecutor(60) as pool:
        with stopped(service.engine.pid):
            waiting = [pool.submit(service.post, wave) for wave in waves]
            wait_for(lambda: service.metric("asr_requests_in_flight") == 60)
        replies = [reply.result().json()["text"] for reply in waiting]
    assert replies == expected
    assert service.metric("asr_batch_chunks_count") - before < 30, "they shared batches"


def test_the_command_and_curl_give_what_transcribe_gives(
    tiny_bundle, tmp_path, monkeypatch, capsys
):
    (tmp_path / "a.wav").write_bytes(encode_audio(beeps(7)))
    command = ["asr", "transcribe", str(tiny_bundle), str(tmp_path / "a.wav")]
    monkeypatch.setattr(sys, "argv", command)
    with pytest.raises(SystemExit):
        main()
    expected = capsys.readouterr().out.strip()
    with started(tiny_bundle) as (_, address):
        if shutil.which("curl"):
            curl = ["curl", "-s", "--noproxy", "*", "-F", "file=@a.wav", "-F", "model=tiny"]
            done = subprocess.run(
                [*curl, address + URL], cwd=tmp_path, capture_output=True, check=True
            )
            answer = json.loads(done.stdout)
        else:
            files = {"file": (tmp_path / "a.wav").read_bytes()}
            data = {"model": "tiny"}
            answer = httpx.post(address + URL, files=files, data=data, trust_env=False).json()
    assert expected and answer["text"] == expected
