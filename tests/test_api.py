"""The Python API in a program of its own: names, threads, processes, and what is refused."""

import multiprocessing
import os
import pickle
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

import asr
from asr.model.inference.decoder import FastDecoder
from tests.helpers import beeps, encode_audio


@pytest.fixture(scope="module")
def model(tiny_bundle: Path) -> asr.Recognizer:
    return asr.load(tiny_bundle, "cpu")


def test_every_public_name_is_there_and_listed() -> None:
    assert set(asr.__all__) <= set(dir(asr))
    assert all(getattr(asr, name).__doc__ for name in asr.__all__)
    shown = subprocess.run(
        [sys.executable, "-m", "asr", "--version"], capture_output=True, text=True, check=True
    )
    assert shown.stdout.startswith("lrt-asr ")


@pytest.mark.parametrize("device", ["mps", "meta", "xpu", "gpu", "cuda:77"])
def test_a_device_that_is_not_there_is_refused(device: str, tiny_bundle: Path) -> None:
    with pytest.raises(asr.ConfigError, match=f"--device {device}: "):
        asr.load(tiny_bundle, device)


def test_what_is_meant_otherwise_is_refused(model: asr.Recognizer) -> None:
    with pytest.raises(asr.ConfigError, match="expected a list of phrases"):
        model.transcribe(encode_audio(beeps(1)), hotwords="今天天气")
    with pytest.raises(asr.ConfigError, match="a bundle by URL: copy it"):
        asr.load("s3://models/lrt")


def test_threads_share_a_model(model: asr.Recognizer) -> None:
    waves = [encode_audio(beeps(i, 0.5 + 0.1 * i)) for i in range(6)]
    expected = [model.transcribe(wave).text for wave in waves]
    with ThreadPoolExecutor(3) as pool:
        assert list(pool.map(lambda wave: model.transcribe(wave).text, waves)) == expected


def test_positions_are_enough_whatever_another_thread_stores(model: asr.Recognizer) -> None:
    decoder = model.model.decoder
    assert isinstance(decoder, FastDecoder)
    short = decoder._sinusoids(2)

    class Disturbed(FastDecoder):
        def __setattr__(self, name: str, value: object) -> None:
            super().__setattr__(name, short if name == "_positions_TD" else value)

    decoder.__class__ = Disturbed
    assert len(decoder._positions(400)) >= 400
    decoder.__class__ = FastDecoder
    decoder._positions_TD = decoder._sinusoids(400)


def test_a_forked_process_is_told_to_load_its_own(model: asr.Recognizer) -> None:
    """It would wait for ever for OpenMP's threads."""

    def ask(end: object) -> None:
        try:
            model.transcribe(encode_audio(beeps(1)))
        except asr.ConfigError as error:
            end.send_bytes(pickle.dumps(str(error)))  # type: ignore[attr-defined]
        os._exit(0)

    ours, theirs = multiprocessing.Pipe(duplex=False)
    number = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        child = multiprocessing.get_context("fork").Process(target=ask, args=(theirs,), daemon=True)
        child.start()
        theirs.close()
        assert ours.poll(60)
        assert "load it in each process" in pickle.loads(ours.recv_bytes())
        child.join(30)
    finally:
        torch.set_num_threads(number)
