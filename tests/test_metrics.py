"""The character error rate against hand counts and a Levenshtein distance written out here."""

import json
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asr.metrics import ErrorCounts, alignment, character_errors
from asr.tokenizer import normalize_text

TEXTS = st.text(alphabet="ab今天好 Ａ", max_size=12)


def levenshtein(a: str, b: str) -> int:
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
    # Whatever stands in one column in both lines is the same character, or marked below it.
    places = []
    for line in (above, below):
        at, column = {}, 0
        for character in line:
            at[column] = character
            column += columns(character)
        places.append(at)
    for column in set(places[0]) & set(places[1]):
        same = places[0][column] == places[1][column]
        assert column < 5 or same or marks[column : column + 1].strip()
