"""Output formats: exact text of transcripts made by hand, and what any transcript must give."""

import json
import re
import time
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asr.decoding.hypothesis import UNCERTAIN, Hypothesis
from asr.normalization import normalize_text
from asr.transcription.transcript import Segment, Token, Transcript
from asr.transcription.writers import (
    FORMATS,
    Word,
    as_json,
    as_srt,
    as_textgrid,
    as_tsv,
    as_txt,
    as_vtt,
    cues,
    words,
)
from data_prep.textgrid import read_textgrid


def segment(tokens: list[tuple[str, float, float]], start: float, end: float) -> Segment:
    text = normalize_text("".join(text for text, _, _ in tokens))
    n = len(tokens)
    times = tuple(Token(*token) for token in tokens)
    return Segment(start, end, text, -1.0, "eos", (9,) * n, (0.5,) * n, times)


def transcript(*segments: Segment) -> Transcript:
    text = normalize_text(" ".join(s.text for s in segments))
    return Transcript(text, -2.0, segments[-1].end, (), segments)


TALK = transcript(
    segment([("你", 0.5, 0.75), ("好", 0.75, 1.0), ("吗", 2.0, 2.25)], 0.0, 19.0),
    Segment(19.0, 30.0, "", 0.0, "no_speech", (), (), None),
    segment([(" A", 3723.0, 3723.2), ("<B", 3723.2, 3723.4), (" &", 3723.5, 3723.6004)], 30, 3724),
)


def test_exact_texts() -> None:
    assert as_txt(TALK) == "你好吗A<B &\n"
    assert as_srt(TALK) == (
        "1\n00:00:00,500 --> 00:00:01,200\n你好\n\n"
        "2\n00:00:02,000 --> 00:00:02,700\n吗\n\n"
        "3\n01:02:03,000 --> 01:02:03,700\nA<B &\n\n"
    )
    assert as_vtt(TALK) == (
        "WEBVTT\n\n"
        "00:00:00.500 --> 00:00:01.200\n你好\n\n"
        "00:00:02.000 --> 00:00:02.700\n吗\n\n"
        "01:02:03.000 --> 01:02:03.700\nA&lt;B &amp;\n\n"
    )
    assert as_tsv(TALK) == (
        "start\tend\ttext\n500\t1200\t你好\n2000\t2700\t吗\n3723000\t3723700\tA<B &\n"
    )


def test_json_holds_everything_on_one_line() -> None:
    text = as_json(TALK)
    assert text.count("\n") == 1 and "你" in text
    parsed = json.loads(text)
    assert parsed["segments"][0]["tokens"][1] == {"text": "好", "start": 0.75, "end": 1.0}
    assert parsed["segments"][1]["tokens"] is None
    assert parsed["duration"] == 3724


def test_without_times_of_tokens_a_segment_is_shared_evenly() -> None:
    whole = Transcript("一" * 60, 0, 6, (), (Segment(0, 6, "一" * 60, 0, "eos", (), (), None),))
    shown = list(cues(whole.segments))
    assert [(round(c.start, 6), round(c.end, 6)) for c in shown] == [(0, 4), (4, 6)]
    assert [c.text for c in shown] == ["一" * 20 + "\n" + "一" * 20, "一" * 20]


def test_words_are_not_torn_apart() -> None:
    tokens = [(text, i / 10, i / 10 + 0.1) for i, text in enumerate([" TRANS", "FORMER"] * 9)]
    shown = list(cues([segment(tokens, 0, 20)]))
    line = "TRANSFORMER TRANSFORMER TRANSFORMER"
    assert [c.text for c in shown] == [f"{line}\n{line}", line]


def test_korean_words_keep_their_spaces() -> None:
    tokens = [
        ("안", 0.0, 0.2),
        ("녕", 0.2, 0.4),
        (" ", 0.4, 0.5),
        ("서", 0.5, 0.7),
        ("울", 0.7, 0.9),
    ]
    found = words(segment(tokens, 0.0, 1.0))
    assert [(word.text.strip(), word.start, word.end) for word in found] == [
        ("안녕", 0.0, 0.4),
        ("서울", 0.5, 0.9),
    ]
    assert [cue.text for cue in cues([segment(tokens, 0.0, 1.0)])] == ["안녕 서울"]


def test_the_confidence_of_a_word_is_the_lowest_of_its_tokens() -> None:
    tokens = tuple(Token(text, i, i + 1) for i, text in enumerate(["你", " GO", "ING", " ", "好"]))
    said = Segment(0, 5, "你GOING好", 0, "eos", (), (0.9, 0.8, 0.2, 0.1, 0.7), tokens)
    assert words(said) == [
        Word("你", 0, 1, 0.9), Word(" GOING", 1, 3, 0.2), Word("好", 4, 5, 0.7),
    ]  # fmt: skip
    assert [w.confidence for w in words(replace(said, tokens=None))] == [0.1] * 3


def test_a_word_whose_space_is_a_token_begins_when_it_is_said() -> None:
    tokens = (Token("G", 0.2, 0.3), Token("O", 0.3, 0.4), Token(" ", 0.4, 0.5),
              Token("O", 5.0, 5.1), Token("N", 5.1, 5.2))  # fmt: skip
    said = Segment(0, 6, "GO ON", 0, "eos", (), (0.9, 0.8, 0.1, 0.7, 0.6), tokens)
    assert words(said) == [Word("GO", 0.2, 0.4, 0.8), Word(" ON", 5.0, 5.2, 0.6)]
    assert [(c.start, c.text) for c in cues([said])] == [(0.2, "GO"), (5.0, "ON")]


def test_a_short_word_stays_until_it_can_be_read() -> None:
    tokens = [("一", 0.0, 0.08), ("二", 2.0, 2.08)]
    parts = [segment(tokens, 0.0, 2.2), segment([("三", 2.3, 2.38)], 2.2, 2.9)]
    spans = [(round(cue.start, 3), round(cue.end, 3)) for cue in cues(parts)]
    assert spans == [(0.0, 0.7), (2.0, 2.3), (2.3, 2.9)], "to the next one, and to the end"


@st.composite
def talks(draw: st.DrawFn) -> Transcript:
    texts = st.sampled_from(["一", "二", " GO", "ING", " ON", "&", "<I>", "3"])
    at, segments = 0.0, []
    for _ in range(draw(st.integers(1, 3))):
        start, tokens = at, []
        for _ in range(draw(st.integers(0, 60))):
            begin = at + draw(st.sampled_from([0.0, 0.0, 0.04, 1.0]))
            at = begin + draw(st.sampled_from([0.04, 0.2]))
            tokens.append((draw(texts), begin, at))
        at += 0.5
        segments.append(segment(tokens, start, at))
    return transcript(*segments)


@settings(max_examples=60, deadline=None)
@given(talks())
def test_subtitles_hold_the_whole_text_in_order_without_overlap(talk: Transcript) -> None:
    block = re.compile(r"(\d+)\n(\d+):(\d\d):(\d\d),(\d{3}) --> (\d+):(\d\d):(\d\d),(\d{3})\n(.+?)\n\n", re.S)  # fmt: skip # noqa: E501
    text = as_srt(talk)
    found = block.findall(text)
    assert block.sub("", text) == "", "nothing but subtitles"
    times = []
    for number, (n, *clock, lines) in enumerate(found, 1):
        assert int(n) == number
        h, m, s, ms, *end = map(int, clock)
        times += [((h * 60 + m) * 60 + s) * 1000 + ms]
        h, m, s, ms = end
        times += [((h * 60 + m) * 60 + s) * 1000 + ms]
        assert times[-2] < times[-1] <= times[-2] + 7000
        assert len(lines.split("\n")) <= 2
        for line in lines.split("\n"):
            assert line == line.strip() != ""
            assert sum(1 + (c in "一二") for c in line) <= 40 or " " not in line
    assert times == sorted(times)
    spoken = "".join(lines for *_, lines in found)
    assert re.sub(r"\s", "", spoken) == re.sub(r"\s", "", talk.text)


@settings(max_examples=60, deadline=None)
@given(talks(), st.sampled_from([0.0, 1.5]))
def test_a_textgrid_has_the_subtitles_and_no_gaps(talk: Transcript, more: float) -> None:
    text = as_textgrid(replace(talk, duration=talk.duration + more))
    (tier,) = read_textgrid(text)
    assert [(part.start, part.end, part.text) for part in tier.parts] == [
        (f"{cue.start:.3f}", f"{cue.end:.3f}", " ".join(cue.text.split()))
        for cue in cues(talk.segments)
    ]
    _, _, _, n, *intervals = text.split("\n")[8:-1]
    starts, ends = ([float(time) for time in intervals[i::3]] for i in (0, 1))
    assert starts == [0.0, *ends[:-1]] and ends == sorted(set(ends)) and len(ends) == int(n)
    assert ends[-1] == round(talk.duration + more, 3) and text.split("\n")[4] == intervals[-2]


def test_a_subtitle_of_one_long_word_ends_after_seven_seconds() -> None:
    talk = transcript(segment([(" GO", 1.0, 1.2), ("ING", 9.0, 9.2)], 0.0, 10.0))
    assert as_srt(talk) == "1\n00:00:01,000 --> 00:00:08,000\nGOING\n\n"


@pytest.mark.parametrize("name", FORMATS)
def test_nothing_said_is_no_error(name: str) -> None:
    nothing = Transcript("", 0.0, 1.0, (), (Segment(0, 1, "", 0.0, "no_speech", (), (), None),))
    text = FORMATS[name](nothing)
    if name == "TextGrid":
        assert [(tier.name, tier.parts) for tier in read_textgrid(text)] == [("text", [])]
        return
    assert text == {"txt": "\n", "srt": "", "vtt": "WEBVTT\n\n", "tsv": "start\tend\ttext\n"}.get(
        name, as_json(nothing)
    )


def test_subtitles_take_time_in_proportion_to_the_words() -> None:
    """Half an hour of dense text stopped the service for five seconds: lines were wrapped anew."""
    tokens = tuple(Token("好", i / 8, (i + 1) / 8) for i in range(20_000))
    segment = Segment(
        0.0, 2500.0, "好" * 20_000, 0.0, "eos", (5,) * 20_000, (0.9,) * 20_000, tokens
    )
    transcript = Transcript.join([segment], 2500.0, ())
    begun = time.process_time()
    text = as_srt(transcript)
    assert time.process_time() - begun < 2
    assert text.count("好") == 20_000 and max(map(len, text.splitlines())) < 40


def test_a_text_that_is_left_out_is_in_a_warning() -> None:
    guess = Hypothesis((5,), -3.0, -3.0, None, "eos", confidences=(0.2,), text="好")
    sure = Segment(0.0, 1.5, "天", -0.1, "eos", (6,), (0.9,), None)
    unsure = Segment(1.5, 4.0, "", 0.0, "uncertain", (), (), None, (UNCERTAIN, guess))
    transcript = Transcript.join([sure, unsure], 4.0, ("before",))
    assert transcript.text == "天"
    assert transcript.warnings == (
        "before", "1.5 to 4.0 s: left out as uncertain, confidence 0.20: 好",
    )  # fmt: skip
