"""Texts of parts of a recording: with spaces between them where the script has spaces."""

import pytest

from asr.joining import join_texts


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        ([], ""),
        (["", "one", "", "two"], "one two"),
        (["そうです。", "はい", "OK"], "そうです。はい OK"),
        (["元気ですか?", "はい"], "元気ですか?はい"),
        (["Really?", "はい"], "Really? はい"),
        (["ไปไหนมา", "ไปตลาด"], "ไปไหนมาไปตลาด"),
        (["안녕", "하세요"], "안녕 하세요"),
    ],
)
def test_a_space_stands_where_the_script_has_spaces(texts: list[str], expected: str) -> None:
    assert join_texts(texts) == expected
