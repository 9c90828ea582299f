"""The demo corpus: sentences of a small Mandarin grammar, synthesized by espeak-ng.

No person speaks in it; every supervision and the report are marked as synthetic. Voices and
sentences of dev and test are not in train. The package espeakng-loader brings the synthesizer.
"""

import random
import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from data_prep.synthesis import VOICES, Line, draw, write_spoken_corpus

if TYPE_CHECKING:
    from data_prep.corpus_writer import Report

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
    lines = script({"test": test, "dev": dev, "train": train}, seed)
    return write_spoken_corpus(lines, out, corpus="demo", jobs=jobs)


def script(wanted: dict[str, int], seed: int) -> dict[str, list[Line]]:
    """Draw lines for each split, no sentence twice.

    If the last split gets more lines, its first lines and the other splits stay the same.
    """
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
    return draw(rng, text, voice)


def _sentence(rng: random.Random) -> str:
    def fill(slot: re.Match[str]) -> str:
        name = slot[1]
        return NUMBERS[name](rng) if name in NUMBERS else rng.choice(SLOTS[name].split())

    while True:
        text = re.sub(r"\{(\w+)\}", fill, rng.choice(TEMPLATES.split()))
        if MIN_LENGTH <= len(text) <= MAX_LENGTH:
            return text
