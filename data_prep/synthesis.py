"""Speech synthesized by espeak-ng: settings of utterances to wav files.

No person speaks in it. The package espeakng-loader brings the synthesizer. Legend: N samples.
"""

import ctypes
import hashlib
import io
import math
import multiprocessing
import os
import random
import re
from concurrent.futures import BrokenExecutor
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import espeakng_loader
import numpy as np
import soundfile as sf
from rich.console import Console
from rich.progress import track
from scipy.signal import firwin, resample_poly  # type: ignore[import-untyped]

from asr.errors import AsrError, DataError, NotWrittenError
from asr.runtime.files import write_atomically
from asr.runtime.processes import process_pool
from asr.runtime.threads import usable_cpus

if TYPE_CHECKING:
    from data_prep.corpus_writer import Report
    from data_prep.cuts import Utterance

SAMPLE_RATE = 16000
# Variants of espeak-ng that sound human. Those that differ only in timbre filters from a voice of
# dev or test (belinda, Diogo, Henrique, Hugo) are in no split, so that test voices are unseen.
VOICES = {
    "train": "Alex Alicia Andy Annie Denis Gene Lee Michael Mike adam aunty boris ed edward f1 f3 "
    "f4 grandma grandpa m1 m4 m5 m6 m7 m8 marcelo norbert paul shelby victor",
    "dev": "f5 m2 sandro steph",
    "test": "f2 linda m3 max michel",
}
# Words per minute, of which a Chinese character is one.
_RATES, _OTHER_RATES = {"cmn": (240, 340)}, (130, 230)
_NO_ERRNO = 255  # the status of a process that fails without an error number of the system
_DIED = (
    "a process died (out of memory?): run it again with fewer --jobs; finished recordings are kept"
)


@dataclass(frozen=True)
class Line:
    """One utterance: rate in words per minute, pitches 0 to 100, margins in s, level in dBFS.

    `language` is espeak-ng's, `voice` one of its variants.
    """

    text: str
    voice: str
    rate: int
    pitch: int
    pitch_range: int
    margins: tuple[float, float]
    level: float
    language: str = "cmn"

    @property
    def digest(self) -> str:
        """Return a hash of the settings, so that a file's name identifies its content."""
        return hashlib.sha256(repr(self).encode()).hexdigest()[:10]


def draw(rng: random.Random, text: str, voice: str, language: str = "cmn") -> Line:
    """Return a line of random rate, pitch, margins and level."""
    slowest, fastest = _RATES.get(language, _OTHER_RATES)
    # Each variant has its own pitch, so that two of one timbre are still two voices.
    pitch = 40 + hashlib.sha256(voice.encode()).digest()[0] % 21
    return Line(
        text=text,
        voice=voice,
        rate=rng.randint(slowest, fastest),
        pitch=pitch + rng.randint(-5, 5),
        pitch_range=rng.randint(35, 65),
        margins=(rng.uniform(0.03, 0.05), rng.uniform(0.03, 0.05)),
        level=rng.uniform(-27.0, -21.0),
        language=language,
    )


def has_language(name: str) -> bool:
    """Return whether espeak-ng has a language of this name."""
    return re.fullmatch(r"[\w-]{1,30}", name) is not None and not _espeak()[
        0
    ].espeak_SetVoiceByName(name.encode())


def _takes(plan: dict[Path, Line]) -> list[list[tuple[Path, Line]]]:
    """Return the lines of every split in groups of ten, without groups whose files all exist."""
    by_split: dict[Path, list[tuple[Path, Line]]] = {}
    for path, line in plan.items():
        by_split.setdefault(path.parent.parent, []).append((path, line))
    takes = [lines[i : i + 10] for lines in by_split.values() for i in range(0, len(lines), 10)]
    return [take for take in takes if not all(path.exists() for path, _ in take)]


def write_spoken_corpus(
    lines: dict[str, list[Line]], out: Path, *, corpus: str, jobs: int | None
) -> "Report":
    """Synthesize the lines of each split in `out`/wav; write their cuts and report.

    Raises DataError if none is spoken, and what `speak` raises.
    """
    # Imported here because the synthesizing processes import this file and do not need lhotse.
    from data_prep.corpus_writer import write_corpus

    return write_corpus(speak(lines, out, jobs), out, corpus=corpus, synthetic=True, jobs=jobs)


def speak(
    lines: dict[str, list[Line]], out: Path, jobs: int | None
) -> dict[str, list["Utterance"]]:
    """Synthesize the lines of each split in `out`/wav; return them as utterances.

    Recordings of an earlier run, even a killed one, are kept. Raises DataError if a recording
    cannot be written or nothing is spoken, AsrError if a process dies.
    """
    from data_prep.cuts import Utterance

    plan = {
        out / "wav" / split / line.voice / f"{split}-{i:06d}-{line.digest}.wav": line
        for split, some in lines.items()
        for i, line in enumerate(some)
    }
    _synthesize(plan, jobs)
    if plan and not any(path.exists() for path in plan):
        language = next(iter(plan.values())).language
        raise DataError(
            f"--language {language}: espeak-ng speaks none of the {len(plan)} texts: give another"
        )
    splits: dict[str, list[Utterance]] = {split: [] for split in lines}
    for path, line in plan.items():
        splits[path.parts[-3]].append(Utterance(path.stem, path, line.text, line.voice))
    return splits


def _synthesize(plan: dict[Path, Line], jobs: int | None) -> None:
    """Write every missing wav; a text of which nothing is spoken gets none.

    It is done in processes, because espeak-ng has one global state. Raises DataError where a file
    cannot be written, AsrError where a process dies.
    """
    takes = _takes(plan)
    if not takes:
        return
    # Spawned, because a fork would inherit the locks of torch's threads in this process.
    context = multiprocessing.get_context("spawn")
    try:
        n = min(jobs or usable_cpus(), len(takes))
        with process_pool(n, context) as pool:
            done = pool.map(_synthesize_in_fork, takes)
            for _ in track(done, "synthesizing", len(takes), console=Console(stderr=True)):
                pass
    except BrokenExecutor as died:
        raise AsrError(_DIED) from died


def _synthesize_in_fork(take: list[tuple[Path, Line]]) -> None:
    """Write the wavs of a take in a fork of this process; raise what `_synthesize` does.

    espeak-ng's noise and flutter depend on everything that it has synthesized since it was loaded;
    its seed does not reset all of it. So a process synthesizes one take only, and all of it.
    """
    _espeak()
    parent = os.getpid()
    if (child := os.fork()) == 0:
        status = _NO_ERRNO
        try:
            for path, line in take:
                if os.getppid() != parent:  # the parent was killed
                    break
                wave_N = _waveform(line)
                if len(wave_N) and not path.exists():
                    _write(path, wave_N)
            status = 0
        except (AsrError, OSError) as error:
            status = getattr(error.__cause__ or error, "errno", None) or _NO_ERRNO
        finally:
            os._exit(status)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if status < 0 or status == _NO_ERRNO:  # < 0: a signal ended it
        raise AsrError(_DIED)
    if status:
        folder, reason = take[0][0].parent.parent, os.strerror(status)
        raise NotWrittenError(
            f"{folder}: cannot be written ({reason}): free some space and run it again"
        )


def _write(path: Path, wave_N: np.ndarray) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    content = io.BytesIO()  # libsndfile does not say why it could not write
    sf.write(content, wave_N, SAMPLE_RATE, subtype="PCM_16", format="WAV")
    write_atomically(path, lambda temporary: temporary.write_bytes(content.getvalue()))


def _waveform(line: Line) -> np.ndarray:
    """Return the line as float samples (N,) at 16 kHz, silence trimmed to its margins.

    There are none where nothing of the text is spoken.
    """
    wave_N, rate = _speak(line)
    if not wave_N.any():
        return wave_N[:0]
    loud = np.flatnonzero(np.abs(wave_N) > 0.02 * np.abs(wave_N).max())
    wave_N = resample_poly(
        wave_N[loud[0] : loud[-1] + 1], SAMPLE_RATE, rate, window=_low_pass(rate)
    )
    gain = 10 ** (line.level / 20) / np.sqrt(np.mean(wave_N**2))
    wave_N *= min(gain, 0.99 / np.abs(wave_N).max())
    before, after = (round(seconds * SAMPLE_RATE) for seconds in line.margins)
    return np.pad(wave_N, (before, after))


@cache
def _low_pass(rate: int) -> np.ndarray:
    """Return the filter that `resample_poly` designs, which takes longer than the resampling."""
    ratio = max(rate, SAMPLE_RATE) // math.gcd(rate, SAMPLE_RATE)
    found: np.ndarray = firwin(20 * ratio + 1, 1 / ratio, window=("kaiser", 5.0))
    return found


@cache
def _espeak() -> tuple[ctypes.CDLL, int]:
    """Load the synthesizer once per process; return it and its sample rate in Hz."""
    library = ctypes.CDLL(str(espeakng_loader.get_library_path()))
    data = str(espeakng_loader.get_data_path()).encode()
    return library, library.espeak_Initialize(2, 0, data, 0)  # 2: synchronous, callback


def _speak(line: Line) -> tuple[np.ndarray, int]:
    library, sample_rate = _espeak()
    parts: list[np.ndarray] = []
    int_, samples_ = ctypes.c_int, ctypes.POINTER(ctypes.c_short)

    @ctypes.CFUNCTYPE(int_, samples_, int_, ctypes.c_void_p)  # type: ignore[untyped-decorator]
    def take(samples: "ctypes._Pointer[ctypes.c_short]", count: int, _events: int) -> int:
        if samples and count > 0:
            parts.append(np.ctypeslib.as_array(samples, (count,)) / 32768.0)
        return 0

    library.espeak_SetSynthCallback(take)
    library.espeak_ng_SetRandSeed(1)
    if library.espeak_SetVoiceByName(f"{line.language}+{line.voice}".encode()):
        raise OSError(f"espeak-ng has no voice {line.language}+{line.voice}")
    # Rate, volume, pitch and range by espeak_PARAMETER; at volume 100 the louder variants clip.
    for number, value in enumerate((line.rate, 60, line.pitch, line.pitch_range), 1):
        library.espeak_SetParameter(number, value, 0)
    text = line.text.encode() + b"\0"
    # Position 0 of kind 1 (character), no end, flags 1 (UTF-8).
    if library.espeak_Synth(text, ctypes.c_size_t(len(text)), 0, 1, 0, 1, None, None):
        raise OSError(f"espeak-ng cannot synthesize {line.text}")
    library.espeak_Synchronize()
    return np.concatenate([np.zeros(0), *parts]), sample_rate
