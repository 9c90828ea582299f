"""The character error rate against hand counts and a Levenshtein distance written out here."""

import json
import unicodedata
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asr.errors import DataError
from asr.evaluation.cer import (
    ErrorCounts,
    alignment,
    character_errors,
    corpus_word_errors,
    have_words,
    score_files,
    word_errors,
)
from asr.normalization import normalize_text
from asr.tokenizer import TokenizerConfig
from tests.helpers import run_cli

TEXTS = st.text(alphabet="ab今天好 Ａ", max_size=12)


def levenshtein(a: Sequence[str], b: Sequence[str]) -> int:
    row = list(range(len(b) + 1))
    for i, x in enumerate(a, 1):
        previous, row = row, [i]
        for j, y in enumerate(b, 1):
            row.append(min(previous[j] + 1, row[-1] + 1, previous[j - 1] + (x != y)))
    return row[-1]


def columns(line: str) -> int:
    return sum(2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in line)


@pytest.mark.parametrize(
    ("reference", "hypothesis", "counts"),
    [
        ("今天天气很好", "今天天气很好", (0, 0, 0, 6)),
        ("今天天气很好", "今天天汽很好", (1, 0, 0, 6)),
        ("今天天气很好", "今天气很好", (0, 0, 1, 6)),
        ("今天天气很好", "今天天天气很好", (0, 1, 0, 6)),
        ("打开灯", "", (0, 0, 3, 3)),
        ("", "打开灯", (0, 3, 0, 0)),
        ("", "", (0, 0, 0, 0)),
        ("灯", "打", (1, 0, 0, 1)),
        ("go left", "go lft", (0, 0, 1, 7)),
        ("go left", "goleft", (0, 0, 1, 7)),
    ],
)
def test_counted_by_hand(reference, hypothesis, counts):
    assert character_errors(reference, hypothesis) == ErrorCounts(*counts)


@pytest.mark.parametrize(
    ("reference", "hypothesis"),
    [("今天 天气", "今天天气"), ("ＡＢＣ１２", "abc12"), ("turn  left ", "TURN LEFT")],
)
def test_width_case_and_spaces_beside_chinese_are_no_errors(reference, hypothesis):
    counts = character_errors(reference, hypothesis)
    assert counts.errors == 0
    assert counts.reference_length == len(normalize_text(reference)) > 0


@given(TEXTS, TEXTS)
def test_errors_are_the_levenshtein_distance(reference, hypothesis):
    a, b = normalize_text(reference), normalize_text(hypothesis)
    counts = character_errors(reference, hypothesis)
    assert counts.errors == levenshtein(a, b)
    assert counts.reference_length == len(a)
    assert len(b) == len(a) - counts.deletions + counts.insertions


@pytest.mark.parametrize(
    ("reference", "hypothesis", "counts"),
    [
        ("go left now", "Go  LEFT now", (0, 0, 0, 3)),
        ("go left now", "go lft", (1, 0, 1, 3)),
        ("go left", "please go left", (0, 1, 0, 2)),
        ("", "go left", (0, 2, 0, 0)),
        ("go left", "", (0, 0, 2, 2)),
        ("今天 天气", "今天天汽", (1, 0, 0, 1)),
    ],
)
def test_words_counted_by_hand(reference, hypothesis, counts):
    assert word_errors(reference, hypothesis) == ErrorCounts(*counts)


@given(st.text("ab ", max_size=12), st.text("ab ", max_size=12))
def test_word_errors_are_the_levenshtein_distance_of_the_words(reference, hypothesis):
    counts = word_errors(reference, hypothesis)
    assert counts.errors == levenshtein(reference.upper().split(), hypothesis.upper().split())
    assert counts.reference_length == len(reference.split())


def test_both_texts_are_normalized_in_the_same_given_way():
    normalize = TokenizerConfig(case="keep", punctuation="remove").normalize
    pair = "Don’t go, Tom!", "don't go tom"
    assert character_errors(*pair, normalize).substitutions == 2
    assert word_errors(*pair, normalize) == ErrorCounts(2, 0, 0, 3)
    assert word_errors(*pair) == ErrorCounts(3, 0, 0, 3)
    assert alignment(*pair, normalize).startswith("REF: Don't go Tom\n")


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        (["GO LEFT", "STOP"], True),
        (["GO", "STOP", ""], False),
        (["今天天气很好", "打开WIFI"], False),
        (["我GO ON吧", "A B你C D"], False),
        (["나는 학교에 간다"], True),
        ([], False),
    ],
)
def test_only_texts_with_several_words_have_words(texts, expected):
    assert have_words(texts) is expected
    assert (corpus_word_errors((text, text) for text in texts) is not None) is expected


def test_a_corpus_pools_words_too():
    pairs = [("ONE TWO THREE FOUR FIVE SIX SEVEN", "ONE TWO THREE FOUR FIVE SIX SEVEN"), ("NO", "")]
    assert corpus_word_errors(pairs) == ErrorCounts(0, 0, 1, 8)


def test_a_corpus_pools_counts_not_rates():
    long, short = (
        character_errors("一二三四五六七八九", "一二三四五六七八九"),
        character_errors("十", ""),
    )
    assert (long + short).rate == pytest.approx(0.1)
    assert long + short == ErrorCounts(0, 0, 1, 10)


def test_rates_without_a_reference_are_finite():
    assert ErrorCounts().rate == 0.0
    assert character_errors("", "一二三").rate == 1.0
    assert character_errors("一", "一二三").rate == 2.0
    json.dumps(character_errors("", "一").rate, allow_nan=False)


def test_alignment_lines_up_two_column_characters():
    assert alignment("今天a好了", "今天A号了吗").split("\n") == [
        "REF: 今天A好了**",
        "HYP: 今天A号了吗",
        "          S   I",
    ]
    assert alignment("打开", "").split("\n") == ["REF: 打开", "HYP: ****", "     D D"]


@given(TEXTS, TEXTS)
def test_alignment_shows_both_texts_and_every_error(reference, hypothesis):
    above, below, marks = alignment(reference, hypothesis).split("\n")
    counts = character_errors(reference, hypothesis)
    found = [marks.count(mark) for mark in "SID"]
    assert found == [counts.substitutions, counts.insertions, counts.deletions]
    for line, text in ((above, reference), (below, hypothesis)):
        shown = line[5:].replace("*", "").replace(" ", "")
        assert shown == normalize_text(text).replace(" ", "")
    # Characters of both lines in the same column are equal, or marked below.
    columns_of = []
    for line in (above, below):
        at, column = {}, 0
        for character in line:
            at[column] = character
            column += columns(character)
        columns_of.append(at)
    for column in set(columns_of[0]) & set(columns_of[1]):
        same = columns_of[0][column] == columns_of[1][column]
        assert column < 5 or same or marks[column : column + 1].strip()


def texts(path: Path, content: str | bytes) -> Path:
    path.write_bytes(content if isinstance(content, bytes) else content.encode("utf-8"))
    return path


REFERENCES = "a 今天天气\nb  ＧＯ left\nc\t打开\nd 好\n"


def test_files_are_scored_by_id_whatever_their_order_width_case_and_spaces(tmp_path: Path) -> None:
    references = texts(tmp_path / "ref.txt", REFERENCES)
    found = texts(tmp_path / "hyp.txt", "\ufeffc\t\r\nb go Left\r\n\r\nd\t好 吗\r\na\t今 天天汽")
    assert score_files(references, found) == (ErrorCounts(1, 1, 2, 4 + 7 + 2 + 1), None)
    printed = run_cli("score", references, found, "--format", "json")
    assert json.loads(printed.stdout) == {
        "cer": pytest.approx(4 / 14), "substitutions": 1, "insertions": 1, "deletions": 2,
        "reference_length": 14,
    }  # fmt: skip
    assert "CER 28.57%" in run_cli("score", references, found).stdout
    silent = texts(tmp_path / "silent.txt", "a\nb \nc\t\nd\n")
    assert score_files(silent, silent) == (ErrorCounts(), None)
    assert score_files(silent, references)[0].rate == 1.0
    assert score_files(references, silent) == (ErrorCounts(0, 0, 14, 14), None)


def test_files_of_a_language_with_spaces_are_scored_by_words_too(tmp_path: Path) -> None:
    references = texts(tmp_path / "ref.txt", "a turn left now\nb stop\n")
    found = texts(tmp_path / "hyp.txt", "a Turn lift\nb stop\n")
    assert score_files(references, found)[1] == ErrorCounts(1, 0, 1, 4)
    printed = json.loads(run_cli("score", references, found, "--format", "json").stdout)
    assert printed["wer"] == 0.5
    assert printed["words"] == {
        "substitutions": 1, "insertions": 0, "deletions": 1, "reference_length": 4,
    }  # fmt: skip
    assert run_cli("score", references, found).stdout.splitlines()[1] == (
        "WER 50.00%: 1 substitutions, 0 insertions, 1 deletions of 4 words"
    )


@pytest.mark.parametrize(
    ("hypotheses", "words"),
    [
        ("a 今\nb x\n", ["hyp.txt: 2 utterances", "missing here", "c, d"]),
        (REFERENCES + "e 好\n", ["ref.txt: 1 utterances", "(e)"]),
        (REFERENCES + "a 好\n", ["hyp.txt, line 5", "a appears a second time"]),
        ("a 今\n\t今\n", ["hyp.txt, line 2", "no id"]),
        ("", ["hyp.txt: has no utterance"]),
        ("a 今天".encode("gbk"), ["hyp.txt: cannot be read as UTF-8"]),
    ],
)
def test_files_of_other_utterances_are_refused(tmp_path: Path, hypotheses, words) -> None:
    references = texts(tmp_path / "ref.txt", REFERENCES)
    found = texts(tmp_path / "hyp.txt", hypotheses)
    with pytest.raises(DataError) as caught:
        score_files(references, found)
    assert all(word in str(caught.value) for word in words)


def test_score_says_what_is_wrong_in_one_sentence(tmp_path: Path) -> None:
    references = texts(tmp_path / "ref.txt", REFERENCES)
    result = run_cli("score", references, texts(tmp_path / "hyp.txt", "a 今\n"))
    assert result.returncode == 3 and "Traceback" not in result.stderr
    missing = run_cli("score", references, tmp_path / "none.txt")
    assert missing.returncode == 3 and "none.txt: cannot be read" in missing.stderr
    assert "Traceback" not in missing.stderr
