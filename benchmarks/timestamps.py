"""Measure the error of the times of tokens on demo sentences, concatenated.

    python -m benchmarks.timestamps BUNDLE [--seconds 120] [--record]

Sentences and voices of the demo's test split are spoken anew by espeak-ng, which says at which
sample each character begins (for a word of its dictionary, the word's first). They are joined with
pauses of 0.3 to 1 s. The table has the mean, the signed mean and the largest error of two times:
the beginnings of the recognized characters, found by aligning the texts, and the ends of
recordings. The end of a recording is that of its last token.
"""

import argparse
import ctypes
import tempfile
from difflib import SequenceMatcher
from pathlib import Path
from typing import Any

import numpy as np
import soundfile as sf
from scipy.signal import resample_poly  # type: ignore[import-untyped]

import asr
from benchmarks import record
from benchmarks.record import Result, Value
from data_prep import demo, synthesis

_WORD = 1


class _Event(ctypes.Structure):
    """Lay out espeak_EVENT up to its sample; the array ends with a kind of 0."""

    _fields_ = (
        ("kind", ctypes.c_int), ("unique", ctypes.c_uint), ("place", ctypes.c_int),
        ("length", ctypes.c_int), ("audio_ms", ctypes.c_int), ("sample", ctypes.c_int),
        ("user", ctypes.c_void_p), ("id", ctypes.c_char * 8),
    )  # fmt: skip


def speak(line: synthesis.Line) -> tuple[np.ndarray, list[tuple[int, float]], float]:
    """Return the trimmed waveform, (character, second) of each word, and the second of its end."""
    library, rate = synthesis._espeak()
    parts: list[np.ndarray] = []
    words: list[tuple[int, int]] = []

    def take(samples: Any, count: int, events: Any) -> int:
        if samples and count > 0:
            parts.append(np.ctypeslib.as_array(samples, (count,)) / 32768.0)
        i = 0
        while events and events[i].kind:
            if events[i].kind == _WORD:
                words.append((events[i].place - 1, events[i].sample))
            i += 1
        return 0

    callback = ctypes.CFUNCTYPE(
        ctypes.c_int, ctypes.POINTER(ctypes.c_short), ctypes.c_int, ctypes.POINTER(_Event)
    )(take)
    library.espeak_SetSynthCallback(callback)
    library.espeak_ng_SetRandSeed(1)
    library.espeak_SetVoiceByName(f"cmn+{line.voice}".encode())
    for number, value in enumerate((line.rate, 60, line.pitch, line.pitch_range), 1):
        library.espeak_SetParameter(number, value, 0)
    text = line.text.encode() + b"\0"
    library.espeak_Synth(text, ctypes.c_size_t(len(text)), 0, 1, 0, 1, None, None)
    library.espeak_Synchronize()
    wave = np.concatenate(parts)
    loud = np.flatnonzero(np.abs(wave) > 0.02 * np.abs(wave).max())
    begin, end = int(loud[0]), int(loud[-1]) + 1
    times = [(place, max(0, sample - begin) / rate) for place, sample in words]
    return resample_poly(wave[begin:end], synthesis.SAMPLE_RATE, rate), times, (end - begin) / rate


Times = dict[int, float]


def dialogue(seconds: int) -> tuple[np.ndarray, str, Times, Times]:
    """Return waveform, text, beginnings of characters and ends of recordings."""
    rng, rate = np.random.default_rng(0), synthesis.SAMPLE_RATE
    waves: list[np.ndarray] = []
    begins: Times = {}
    ends: Times = {}
    text, at = "", 0.0
    for line in demo.script({"test": 400}, 1)["test"]:
        wave, words, end = speak(line)
        wave = np.pad(wave * 0.5 / np.abs(wave).max(), (0, int(rng.uniform(0.3, 1.0) * rate)))
        begins |= {len(text) + index: at + second for index, second in words}
        text += line.text
        ends[len(text) - 1] = at + end
        waves.append(wave)
        at += len(wave) / rate
        if at > seconds:
            break
    return np.concatenate(waves), text, begins, ends


def main() -> None:
    """Speak, join, transcribe, compare."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("bundle", type=Path)
    parser.add_argument("--seconds", type=int, default=120)
    record.add_option(parser)
    args = parser.parse_args()
    wave, text, begins, ends = dialogue(args.seconds)
    record.progress(f"{len(wave) / synthesis.SAMPLE_RATE:.0f} s, {len(text)} characters are spoken")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "a.wav"
        sf.write(path, wave, synthesis.SAMPLE_RATE)
        found = asr.load(args.bundle, "cpu").transcribe(path)
    tokens = [token for segment in found.segments for token in segment.tokens or ()]
    blocks = SequenceMatcher(None, text, "".join(t.text for t in tokens), autojunk=False)
    pairs = [(a + i, tokens[b + i]) for a, b, n in blocks.get_matching_blocks() for i in range(n)]
    rows: list[list[Value]] = []
    for name, truth, times in (
        ("beginnings of characters", begins, {i: token.start for i, token in pairs}),
        ("ends of recordings", ends, {i: token.end for i, token in pairs}),
    ):
        errors = 1000 * np.array([times[i] - truth[i] for i in times if i in truth])
        mean, signed, largest = np.abs(errors).mean(), errors.mean(), np.abs(errors).max()
        rows.append([name, len(errors), float(mean), float(signed), float(largest)])
    columns = {
        "times": "", "number": "d", "mean error (ms)": ".0f", "signed (ms)": "+.0f",
        "largest (ms)": ".0f",
    }  # fmt: skip
    note = f"{len(pairs)} of {len(text)} characters are recognized."
    title = "Times of the demo's tokens"
    record.publish(args, "timestamps", [Result(title=title, note=note, columns=columns, rows=rows)])


if __name__ == "__main__":
    main()
