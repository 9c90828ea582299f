"""Hotwords of requests and of live sessions: each its own, and not too many."""

import base64
import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest
import soundfile as sf
from websockets.sync.client import connect

import asr
from tests.helpers import RATE, Service, mistuned, run_cli, running, say


def recording() -> tuple[bytes, bytes, str]:
    """Four tones: a file, its samples, and the phrase that hotwords make of it."""
    wave, phrase = mistuned()
    file = io.BytesIO()
    sf.write(file, wave, RATE, format="WAV", subtype="PCM_16")
    return file.getvalue(), (wave * 2**15).astype("<i2").tobytes(), phrase


@pytest.mark.parametrize("url", ["/v1/transcribe", "/v1/audio/transcriptions"])
def test_a_request_has_its_own_hotwords(trained_service: Service, url: str) -> None:
    file, _, phrase = recording()

    def ask(**fields: Any) -> dict:
        reply = trained_service.post(file, url, **fields)
        assert reply.status_code == 200, reply.text
        found: dict = reply.json()
        return found

    plain = ask()["text"]
    assert phrase not in plain
    assert phrase in ask(hotwords=f"三三三,{phrase}")["text"]
    assert phrase in ask(**{"keywords[]": ["三三三", phrase]})["text"], "OpenAI's name of them"
    found = ask(hotwords=f"龍\n{phrase}\t0.01")
    assert found["text"] == plain and "龍" in found["warnings"][0]
    found = ask(prompt=f"请听：{phrase}。")
    assert phrase in found["text"] and "请听" in found["warnings"][0]
    assert ask()["text"] == plain


def test_a_stranger_cannot_send_too_many(trained_service: Service) -> None:
    file, _, _ = recording()
    lists = ("\n".join(map(str, range(1001))), "今" * 51, "三\tmany", "三\t11", "三\tnan")
    for hotwords in lists:
        reply = trained_service.post(file, hotwords=hotwords)
        assert reply.status_code == 400 and reply.json()["error"]["param"] == "hotwords"
    reply = trained_service.post(file, hotwords="一", **{"keywords[]": lists[0].split()})
    assert reply.status_code == 400 and "1002 hotwords" in reply.json()["error"]["message"]
    assert trained_service.post(file, prompt="三五," * 10000).status_code == 200


@pytest.mark.parametrize("as_list", [True, False])
def test_a_live_session_has_its_own_hotwords(trained_service: Service, as_list: bool) -> None:
    _, pcm, phrase = recording()
    lines = [f"{phrase}\t1.5", "三五"]
    start = {"sample_rate": RATE, "model": "tiny"}
    asked = start | {"hotwords": lines if as_list else "\n".join(lines)}
    url = f"ws://{trained_service.host}:{trained_service.port}/v1/live"
    texts = []
    for first in (start, asked):
        with connect(url, proxy=None) as socket:
            socket.send(json.dumps(first))
            socket.send(pcm)
            socket.send(json.dumps({"type": "end"}))
            *_, end = map(json.loads, socket)
            texts.append(end["text"])
    assert [phrase in text for text in texts] == [False, True]
    with connect(url, proxy=None) as socket:
        socket.send(json.dumps(start | {"hotwords": ["三"] * 1001}))
        error = json.loads(socket.recv())["error"]
        assert error["param"] == "hotwords" and "1001" in error["message"]
    for wrong in (5, ["三", 5]):
        with connect(url, proxy=None) as socket:
            socket.send(json.dumps(start | {"hotwords": wrong}))
            error = json.loads(socket.recv())["error"]
        assert error["param"] == "hotwords" and "give a text or a list of" in error["message"]


def test_a_streamed_session_has_its_own_hotwords(streaming_bundle: Path) -> None:
    wave, tones = say(4, 21)
    said = "".join(text for text, _, _ in tones)
    phrase = said[0] + next(c for c in "一二三四五" if c != said[1]) + said[2]
    model = asr.load(streaming_bundle, "cpu")
    wanted = [
        "".join(
            r.text for r in model.stream([wave.astype("float32")], hotwords=words) if r.is_final
        )
        for words in ((), [(phrase, 6.0)])
    ]
    assert wanted[0] != wanted[1]
    with running(streaming_bundle) as service:
        url = f"ws://{service.host}:{service.port}/v1/live"
        for text, hotwords in zip(wanted, ("", f"{phrase}\t6"), strict=True):
            with connect(url, proxy=None) as socket:
                start = {"sample_rate": RATE, "model": "whisper-1", "hotwords": hotwords}
                socket.send(json.dumps(start))
                socket.send((wave * 2**15).astype("<i2").tobytes())
                socket.send(json.dumps({"type": "end"}))
                *_, end = map(json.loads, socket)
            assert end["text"] == text


@pytest.mark.filterwarnings("ignore:connect.. must be used as a context manager")
@pytest.mark.parametrize("vad", [None, {"type": "server_vad"}])
def test_names_in_a_realtime_prompt_are_hotwords(trained_service: Service, vad: Any) -> None:
    """With server VAD no commit ends the first turn: other names do."""
    _, pcm, phrase = recording()
    texts = []
    url = f"http://{trained_service.host}:{trained_service.port}/v1"
    client = openai.OpenAI(api_key="none", base_url=url)
    options: Any = {"proxy": None}
    with client.realtime.connect(
        extra_query={"intent": "transcription"}, websocket_connection_options=options
    ) as connection:
        for prompt in ("你好！", f"请听：{phrase}。"):
            audio = {
                "format": {"type": "audio/pcm", "rate": RATE},
                "transcription": {"prompt": prompt}, "turn_detection": vad,
            }  # fmt: skip
            session: Any = {"type": "transcription", "audio": {"input": audio}}
            connection.session.update(session=session)
            connection.input_audio_buffer.append(audio=base64.b64encode(pcm).decode())
            if not vad:
                connection.input_audio_buffer.commit()
        if vad:
            connection.input_audio_buffer.commit()
        for _ in range(2):
            texts += [e.transcript for e in _until_completed(connection)]
    assert [phrase in text for text in texts] == [False, True]


def _until_completed(connection: Any) -> Iterator[Any]:
    while True:
        event = connection.recv()
        assert event.type != "error", event
        if event.type.endswith("transcription.completed"):
            yield event
            return


def test_the_client_sends_its_list(trained_service: Service, tmp_path: Path) -> None:
    file, _, phrase = recording()
    (tmp_path / "a.wav").write_bytes(file)
    (tmp_path / "words.txt").write_text(f"{phrase}\t1.5\n", "utf-8")
    server = f"http://{trained_service.host}:{trained_service.port}"
    words = ("--hotwords", tmp_path / "words.txt")
    done = run_cli("transcribe", tmp_path / "a.wav", *words, "--server", server)
    assert phrase in done.stdout, done.stderr
