"""The error rates of syllables, by which words that training lacks are measured."""

import pytest

pytest.importorskip("pypinyin")

from benchmarks.syllables import wrong_syllables


def test_homophones_are_right_and_tones_count_where_they_are_to() -> None:
    said = ["背景", "意见", "中国", "书"]
    assert wrong_syllables(said, said) == (0, 0)
    assert wrong_syllables(said, ["背景", "意见", "钟国", "输"]) == (0, 0)
    assert wrong_syllables(said, ["北京", "意见", "中国", "书"]) == (2 / 7, 0)
    assert wrong_syllables(said, ["背景", "", "中国人", "树"]) == (4 / 7, 3 / 7)
