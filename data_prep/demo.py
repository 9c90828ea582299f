"""The demo corpus: sentences of a small Mandarin grammar, synthesized by espeak-ng.

No person speaks in it; every supervision and the report are marked as synthetic. Voices and
sentences of dev and test are not in train. The package espeakng-loader brings the synthesizer.
"""

import ctypes
import hashlib
import io
import multiprocessing
import os
import random
import re
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import espeakng_loader
import numpy as np
import soundfile as sf
from rich.console import Console
from rich.progress import track
from scipy.signal import resample_poly  # type: ignore[import-untyped]

from asr.errors import AsrError, DataError
from asr.runtime.files import write_atomically

if TYPE_CHECKING:
    from data_prep.corpus_writer import Report

SAMPLE_RATE = 16000
# Variants of espeak-ng that sound human. Those that differ only in timbre filters from a voice of
# dev or test (belinda, Diogo, Henrique, Hugo) are in no split, so that test voices are unseen.
VOICES = {
    "train": "Alex Alicia Andy Annie Denis Gene Lee Michael Mike adam aunty boris ed edward f1 f3 "
    "f4 grandma grandpa m1 m4 m5 m6 m7 m8 marcelo norbert paul shelby victor",
    "dev": "f5 m2 sandro steph",
    "test": "f2 linda m3 max michel",
}

TEMPLATES = """
    {day}{part}{clock}去{place} {day}{part}{clock}叫我起床 {part}{clock}提醒我{act}
    {who}{day}坐{ride}{go}{city} {who}{day}{part}{go}{city} {month}月{date}号{who}{go}{city}
    请{on}{room}的{thing} {on}{room}的{thing} 把{room}的{thing}{on} 请把{room}的{thing}{on}
    请把{room}空调调到{degrees}度 把{room}的空调调到{degrees}度 {day}{part}{on}{room}的{thing}
    从{city}到{city}有{hundreds}公里 从{city}到{city}要{hundreds}分 {city}到{city}的火车{clock}开
    请打{who}的电话{digits} {who}的电话{digits} {day}{part}给{who}打电话 请给{who}打电话{digits}
    我要买{count}张去{city}的{ride}票 {who}要{count}张{date}号的票 {who}{part}{clock}回家{eat}
    我要{count}杯{heat}{drink} 给{who}买{count}杯{heat}{drink} {who}要{count}杯{drink}
    {city}{day}{heat}不{heat} {city}{day}{degrees}度 {city}{day}有{degrees}度 {place}{day}开不开门
    {place}{part}{clock}开门 {place}{clock}关门 {place}里有{hundreds}人 {who}{day}去{place}{act}
"""

SLOTS = {
    "day": "今天 明天 后天 周一 周二 周三 周四 周五 周六 周日",
    "part": "早上 上午 中午 下午 晚上",
    "city": "北京 上海 南京 西安 大连 深圳 重庆",
    "place": "学校 公司 医院 机场 火车站 公园 书房 客厅",
    "room": "客厅 书房 厨房 阳台",
    "thing": "灯 灯 空调 电视 窗 窗 门",
    "on": "打开 关上",
    "act": "开会 吃饭 喝茶 买票 看书 打电话",
    "who": "我 妈妈 爸爸 老师 哥哥 姐姐 他",
    "ride": "火车 飞机 地铁",
    "go": "去 回",
    "eat": "吃饭 喝茶 喝水 看书 看电视",
    "heat": "冷 热",
    "drink": "茶 水",
}

MIN_LENGTH, MAX_LENGTH = 4, 14  # characters in a sentence


def _hanzi(number: int) -> str:
    """Return 0 < number < 1000 in Chinese characters: 12 is 十二, 105 is 一百零五."""
    digits = "零一二三四五六七八九"
    hundreds, rest = divmod(number, 100)
    tens, ones = divmod(rest, 10)
    text = f"{digits[hundreds]}百" if hundreds else ""
    if tens:
        text += "十" if tens == 1 and not hundreds else f"{digits[tens]}十"
    elif hundreds and ones:
        text += "零"
    return text + (digits[ones] if ones else "")


def _clock(rng: random.Random) -> str:
    hour = rng.randint(1, 12)
    minutes = rng.choice(["", "", "半", f"{_hanzi(rng.randint(10, 59))}分"])
    return ("两" if hour == 2 else _hanzi(hour)) + "点" + minutes


NUMBERS: dict[str, Callable[[random.Random], str]] = {
    "clock": _clock,
    "month": lambda rng: _hanzi(rng.randint(1, 12)),
    "date": lambda rng: _hanzi(rng.randint(1, 31)),
    "degrees": lambda rng: _hanzi(rng.randint(5, 38)),
    "hundreds": lambda rng: _hanzi(rng.randint(101, 999)),
    "count": lambda rng: "两" if (n := rng.randint(1, 20)) == 2 else _hanzi(n),
    "digits": lambda rng: "".join(rng.choices("零一二三四五六七八九", k=rng.randint(4, 7))),
}


@dataclass(frozen=True)
class Line:
    """One utterance: rate in words per minute, pitches 0 to 100, margins in s, level in dBFS."""

    text: str
    voice: str
    rate: int
    pitch: int
    pitch_range: int
    margins: tuple[float, float]
    level: float

    @property
    def digest(self) -> str:
        """Return a hash of the settings, so that a file's name identifies its content."""
        return hashlib.sha256(repr(self).encode()).hexdigest()[:10]


def prepare(
    out: Path,
    *,
    seed: int = 1,
    train: int = 10_000,
    dev: int = 200,
    test: int = 400,
    jobs: int | None = None,
) -> "Report":
    """Synthesize `train`, `dev` and `test` sentences in `out`/wav; write their cuts and report.

    The same seed gives the same bytes for any number of processes (`jobs`). Recordings of an
    earlier run, even a killed one, are kept. Raises DataError if a recording cannot be written or
    synthesized, AsrError if a process dies.
    """
    # Imported here because the synthesizing processes import this file and do not need lhotse.
    from data_prep.corpus_writer import Utterance, write_corpus

    wanted = {"test": test, "dev": dev, "train": train}
    plan = {
        out / "wav" / split / line.voice / f"{split}-{i:06d}-{line.digest}.wav": line
        for split, lines in script(wanted, seed).items()
        for i, line in enumerate(lines)
    }
    _synthesize_all(plan, jobs)
    splits: dict[str, list[Utterance]] = {split: [] for split in VOICES}
    for path, line in plan.items():
        splits[path.parts[-3]].append(Utterance(path.stem, path, line.text, line.voice))
    return write_corpus(splits, out, corpus="demo", synthetic=True, jobs=jobs)


def script(wanted: dict[str, int], seed: int) -> dict[str, list[Line]]:
    """Draw lines for each split, no sentence twice; a longer last split begins with the same."""
    rng = random.Random(seed)
    used: set[str] = set()
    lines: dict[str, list[Line]] = {}
    for split, count in wanted.items():
        voices = VOICES[split].split()
        lines[split] = [_line(rng, voices[i % len(voices)], used) for i in range(count)]
    return lines


def _line(rng: random.Random, voice: str, used: set[str]) -> Line:
    while (text := _sentence(rng)) in used:
        pass
    used.add(text)
    # Each variant has its own pitch, so that two of one timbre are still two voices.
    pitch = 40 + hashlib.sha256(voice.encode()).digest()[0] % 21
    return Line(
        text=text,
        voice=voice,
        rate=rng.randint(240, 340),
        pitch=pitch + rng.randint(-5, 5),
        pitch_range=rng.randint(35, 65),
        margins=(rng.uniform(0.03, 0.05), rng.uniform(0.03, 0.05)),
        level=rng.uniform(-27.0, -21.0),
    )


def _sentence(rng: random.Random) -> str:
    def fill(slot: re.Match[str]) -> str:
        name = slot[1]
        return NUMBERS[name](rng) if name in NUMBERS else rng.choice(SLOTS[name].split())

    while True:
        text = re.sub(r"\{(\w+)\}", fill, rng.choice(TEMPLATES.split()))
        if MIN_LENGTH <= len(text) <= MAX_LENGTH:
            return text


def _takes(plan: dict[Path, Line]) -> list[list[tuple[Path, Line]]]:
    """Return the lines of every split in groups, without those that are all on the disk."""
    by_split: dict[Path, list[tuple[Path, Line]]] = {}
    for path, line in plan.items():
        by_split.setdefault(path.parent.parent, []).append((path, line))
    takes = [lines[i : i + 10] for lines in by_split.values() for i in range(0, len(lines), 10)]
    return [take for take in takes if not all(path.exists() for path, _ in take)]


def _synthesize_all(plan: dict[Path, Line], jobs: int | None) -> None:
    """Write every missing wav; in processes, because espeak-ng has one global state."""
    takes = _takes(plan)
    if not takes:
        return
    # Spawned, because a fork would inherit the locks of torch's threads in this process.
    context = multiprocessing.get_context("spawn")
    try:
        with ProcessPoolExecutor(jobs or os.cpu_count(), mp_context=context) as pool:
            done = pool.map(_synthesize_in_fork, takes, chunksize=4)
            for error in track(done, "synthesizing", len(takes), console=Console(stderr=True)):
                if error:
                    pool.shutdown(cancel_futures=True)
                    raise DataError(error)
    except BrokenProcessPool as died:
        raise AsrError(
            "a process died (out of memory?): run it again with fewer --jobs; finished recordings "
            "are kept"
        ) from died


def _synthesize_in_fork(take: list[tuple[Path, Line]]) -> str | None:
    """Write the wavs of a take in a fork of this process; return an error message, if any.

    espeak-ng's noise and flutter depend on everything that it has synthesized since it was loaded;
    its seed does not reset all of it. So a process synthesizes one take only, and all of it.
    """
    _espeak()
    if (child := os.fork()) == 0:
        status = 1
        try:
            for path, line in take:
                wave_N = _waveform(line)
                if not path.exists():
                    _write(path, wave_N)
            status = 0
        except (AsrError, OSError) as error:
            status = getattr(error.__cause__ or error, "errno", None) or 1
        finally:
            os._exit(status)
    if status := os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]):
        folder, reason = take[0][0].parent.parent, os.strerror(abs(status))
        return f"{folder}: cannot be written ({reason}): free some space and run it again"
    return None


def _write(path: Path, wave_N: np.ndarray) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    content = io.BytesIO()  # libsndfile does not say why it could not write
    sf.write(content, wave_N, SAMPLE_RATE, subtype="PCM_16", format="WAV")
    write_atomically(path, lambda temporary: temporary.write_bytes(content.getvalue()))


def _waveform(line: Line) -> np.ndarray:
    """Return the line as float samples (N,) at 16 kHz, silence trimmed to its margins."""
    wave_N, rate = _synthesize(line)
    loud = np.flatnonzero(np.abs(wave_N) > 0.02 * np.abs(wave_N).max())
    wave_N = resample_poly(wave_N[loud[0] : loud[-1] + 1], SAMPLE_RATE, rate)
    gain = 10 ** (line.level / 20) / np.sqrt(np.mean(wave_N**2))
    wave_N *= min(gain, 0.99 / np.abs(wave_N).max())
    before, after = (round(seconds * SAMPLE_RATE) for seconds in line.margins)
    return np.pad(wave_N, (before, after))


@cache
def _espeak() -> tuple[ctypes.CDLL, int]:
    """Load the synthesizer once per process; return it and its sample rate in Hz."""
    library = ctypes.CDLL(str(espeakng_loader.get_library_path()))
    data = str(espeakng_loader.get_data_path()).encode()
    return library, library.espeak_Initialize(2, 0, data, 0)  # 2: synchronous, callback


def _synthesize(line: Line) -> tuple[np.ndarray, int]:
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
    if library.espeak_SetVoiceByName(f"cmn+{line.voice}".encode()):
        raise OSError(f"espeak-ng has no voice cmn+{line.voice}")
    # Rate, volume, pitch and range by espeak_PARAMETER; at volume 100 the louder variants clip.
    for number, value in enumerate((line.rate, 60, line.pitch, line.pitch_range), 1):
        library.espeak_SetParameter(number, value, 0)
    text = line.text.encode() + b"\0"
    # Position 0 of kind 1 (character), no end, flags 1 (UTF-8).
    if library.espeak_Synth(text, ctypes.c_size_t(len(text)), 0, 1, 0, 1, None, None):
        raise OSError(f"espeak-ng cannot synthesize {line.text}")
    library.espeak_Synchronize()
    return np.concatenate(parts), sample_rate
