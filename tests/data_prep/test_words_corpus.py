"""A list of words becomes synthetic speech of voices that are kept apart."""

from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from data_prep.synthesis import VOICES
from data_prep.words import language_of, read_entries, script


@pytest.mark.costly
@given(st.integers(1, 400))
def test_every_word_is_spoken_by_many_voices(n_words: int) -> None:
    entries = [f"word {i}" for i in range(n_words)]
    lines = script(entries, "en-us", 1)
    said = Counter(line.text for line in lines["train"])
    assert set(said) == set(entries) and len(set(said.values())) == 1
    voices = {line.voice for line in lines["train"] if line.text == entries[0]}
    assert len(voices) == min(said[entries[0]], len(VOICES["train"].split()))
    splits = [{line.voice for line in lines[split]} for split in ("train", "dev", "test")]
    assert not (splits[0] & splits[1] or splits[0] & splits[2] or splits[1] & splits[2])
    assert all(1 <= len(lines[split]) <= 400 for split in ("dev", "test"))


def test_the_language_follows_from_letters() -> None:
    texts = {
        "今日は": "ja",
        "你好": "cmn",
        "안녕": "ko",
        "привет": "ru",
        "hello": "en-us",
        "ağaç": "tr",
        "kapı": "tr",
        "你好OK": "cmn",
    }
    assert {text: language_of([text]) for text in texts} == texts


def test_the_letters_of_most_words_decide_on_the_language(caplog) -> None:
    lists = {
        "stop go on off left π": "en-us",
        "打开电灯 关上窗户 音乐 stop go play pause next louder": "cmn",
        "WiFi привет пока нет": "ru",
        "OK 你好 APP 打开": "cmn",
        "東京 大阪 ありがとう": "ja",
        "你好 打开 关上 再见 开始 买の": "cmn",
    }
    assert {words: language_of(words.split()) for words in lists} == lists
    assert "1 of 6 entries, such as π, have other letters than those of en-us" in caplog.text
    assert "6 of 9 entries, such as stop, have other letters than those of cmn" in caplog.text
    assert caplog.text.count("other letters") == 3, "and の"
    assert language_of(["stop", "go", "on", "off", "left", "right", "α", "β"]) == "el"
    assert "6 of 8 entries, such as stop, have other letters than those of el" in caplog.text


def test_words_of_other_letters_are_other_words(tmp_path: Path) -> None:
    """Not so words of other cases, or of signs that are not seen."""
    words = tmp_path / "words.txt"
    words.write_text("sınır\nsinir\nMaße\nMasse\nmasse\nMas\u00adse\n\u200fSINIR\n", "utf-8")
    assert read_entries(words) == ["sınır", "SINIR", "Maße", "Masse"]
