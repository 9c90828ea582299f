"""Whole texts of a word list: the share that is right, and what is taken for what."""

from asr.evaluation.confusions import Confusion, count_whole_texts

PAIRS = [
    *5 * [("北京", "北京")],
    *3 * [("北京", "背景")],
    *6 * [("背景", "背景")],
    ("背景", ""),
    ("OPEN", "OPEN"),
    *2 * [("OPEN", "CLOSE")],
]


def test_confusions_are_counted_and_ordered() -> None:
    found = count_whole_texts(PAIRS)
    assert found and (found.right, found.utterances, found.texts) == (12, 18, 3)
    assert found.confusions == (
        Confusion(reference="北京", hypothesis="背景", times=3),
        Confusion(reference="OPEN", hypothesis="CLOSE", times=2),
        Confusion(reference="背景", hypothesis="", times=1),
    )
    assert str(found) == "66.67% of utterances right: 12 of 18, of 3 different texts"
    rows = found.table(2).splitlines()[2:]
    assert [row.split() for row in rows] == [["北京", "背景", "3"], ["OPEN", "CLOSE", "2"]]
    assert "(no text)" in found.table(9)


def test_texts_that_do_not_recur_have_none() -> None:
    assert count_whole_texts([("A", "A"), ("B", "C"), ("C", "C")]) is None
    assert count_whole_texts([]) is None
