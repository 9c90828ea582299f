"""Tests of tables as people write them: what is told of a line that is not used, and of a guess."""

import json
import logging
import os
from pathlib import Path

import numpy as np
import pytest
import soundfile as sf

from asr.errors import DataError
from data_prep.table import prepare
from data_prep.text_file import read_text
from data_prep.transcripts import read_transcripts


def csv(tmp_path: Path, *rows: str, encoding: str = "utf-8") -> Path:
    path = tmp_path / "t.csv"
    path.write_bytes("\n".join(rows).encode(encoding) + b"\n")
    return path


def takes(tmp_path: Path, n: int) -> Path:
    """Return a folder of so many recordings: 0.wav, 1.wav, …"""
    folder = tmp_path / "takes"
    folder.mkdir()
    for i in range(n):
        sf.write(folder / f"{i}.wav", 0.1 * np.random.default_rng(i).standard_normal(8000), 16000)
    return folder


def speakers_of(out: Path) -> dict[str, int]:
    """Return the counts of named speakers by split."""
    report = json.loads((out / "report.json").read_text())
    return {name: split["speakers"] for name, split in report["splits"].items()}


def test_every_line_within_a_quote_that_is_not_closed_is_told(tmp_path: Path) -> None:
    rows = ["file,text", "0.wav,one", '1.wav,"two', "2.wav,three", '3.wav,four"', "4.wav,five"]
    found = read_transcripts(csv(tmp_path, *rows))
    assert [line.number for line in found.lines] == [2, 6]
    assert sorted(found.faults) == [3, 4, 5]
    assert "close it" in found.faults[3].what and "opens in line 3" in found.faults[5].what


def test_lines_of_a_row_with_other_cells_are_all_told(tmp_path: Path) -> None:
    found = read_transcripts(csv(tmp_path, "file,text", '0.wav,"one\ntwo",x', "1.wav,three"))
    assert sorted(found.faults) == [2, 3] and [line.text for line in found.lines] == ["three"]


def test_empty_cells_at_the_end_may_be_left_out_or_added(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """As Excel writes the rows of a column that is mostly empty."""
    rows = ["file;text;speaker", "0.wav;one;ann", "1.wav;two", "2.wav;three;;;", "3.wav"]
    found = read_transcripts(csv(tmp_path, *rows))
    assert [(line.text, line.speaker) for line in found.lines] == [
        ("one", "ann"), ("two", None), ("three", None),
    ]  # fmt: skip
    assert found.faults[5].reason == "no_text"
    assert "2 rows, the first in line 3, have fewer cells" in caplog.text


def test_times_may_have_a_decimal_comma(tmp_path: Path) -> None:
    rows = ["file;text;start;end", "a.wav;one;1,5;3,25", "a.wav;two;4;x,5"]
    found = read_transcripts(csv(tmp_path, *rows))
    assert [(line.start, line.seconds) for line in found.lines] == [(1.5, 1.75)]
    assert found.faults[3].reason == "bad_times"
    english = read_transcripts(csv(tmp_path, rows[0], "a.wav;one;0.5;3", 'a.wav;two;"1,250";1300'))
    assert [line.start for line in english.lines] == [0.5] and english.faults[3]


def test_an_object_of_hugging_face_is_its_path(tmp_path: Path) -> None:
    row = {"audio": {"path": "clips/a.mp3", "bytes": None}, "sentence": "hello"}
    (tmp_path / "t.jsonl").write_text(json.dumps(row))
    (line,) = read_transcripts(tmp_path / "t.jsonl").lines
    assert line.audio == "clips/a.mp3"


def test_shift_jis_is_known_by_its_kana(tmp_path: Path) -> None:
    texts = ["おはようございます", "東京タワー", "ﾃｽﾄです"]
    rows = ["file,text", *(f"{i}.wav,{text}" for i, text in enumerate(texts))]
    found = read_transcripts(csv(tmp_path, *rows, encoding="cp932"))
    assert found.encoding == "cp932" and [line.text for line in found.lines] == texts
    chinese = ["今天天气很好", "打开电灯", "请把门关上，谢谢。", "２３号，ｇｏ"]
    rows = ["file,text", *(f"{i}.wav,{text}" for i, text in enumerate(chinese))]
    found = read_transcripts(csv(tmp_path, *rows, encoding="gbk"))
    assert found.encoding == "gb18030" and [line.text for line in found.lines] == chinese


@pytest.mark.parametrize("head", [b"PK\x03\x04\x14", b"\xd0\xcf\x11\xe0"])
def test_a_spreadsheet_is_to_be_saved_as_text(head: bytes, tmp_path: Path) -> None:
    (tmp_path / "t.xlsx").write_bytes(head + b"\0\1\2")
    with pytest.raises(DataError, match="is a spreadsheet or another packed file"):
        read_transcripts(tmp_path / "t.xlsx")


def test_columns_that_are_not_used_are_named_where_no_recording_is_found(tmp_path: Path) -> None:
    table = csv(tmp_path, "id,文件名,text", "7,0.wav,one", "8,1.wav,two")
    with pytest.raises(DataError, match=r"--audio-column; it has id, text, 文件名"):
        prepare(takes(tmp_path, 2), table, tmp_path / "out")


def test_a_comma_in_most_lines_is_between_cells_although_a_text_has_a_semicolon(
    tmp_path: Path,
) -> None:
    found = read_transcripts(csv(tmp_path, "a.wav,hello; you", "b.wav,good day", "c.wav,yes; no"))
    assert [line.text for line in found.lines] == ["hello; you", "good day", "yes; no"]
    texts = read_transcripts(csv(tmp_path, "file,text", 'a.wav,"x; y\nz; w\nq; r"')).lines
    assert [line.text for line in texts] == ["x; y\nz; w\nq; r"]
    decimal = read_transcripts(csv(tmp_path, "a.wav;one, two", "b.wav;three, four"))
    assert [line.text for line in decimal.lines] == ["one, two", "three, four"]


@pytest.mark.parametrize("word", ["start", "stop"])
def test_a_command_in_the_first_line_is_no_header(word: str, tmp_path: Path) -> None:
    found = read_transcripts(csv(tmp_path, f"001\t{word}", "002\tgo"))
    assert [line.text for line in found.lines] == [word, "go"]


@pytest.mark.parametrize("column", ["Speaker ID", "speaker-id", "Speaker_Name", "user id"])
def test_spaces_and_hyphens_in_names_of_columns(column: str, tmp_path: Path) -> None:
    table = csv(tmp_path, f"File Name,Transcript,{column}", "0.wav,one,Ann")
    assert [line.speaker for line in read_transcripts(table).lines] == ["Ann"]


@pytest.mark.parametrize("word", ["unknown", "N/A", "NA", "nan", "None", "?", "Anonymous"])
def test_a_word_in_place_of_a_name_is_no_person(
    word: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    people = ["ann", "bob", "cat", "dan", word, word]
    rows = [f"{i}.wav,text {i},{who}" for i, who in enumerate(people)]
    prepare(takes(tmp_path, 6), csv(tmp_path, "file,text,speaker", *rows), tmp_path / "out")
    assert "2 lines name no speaker: they are in train" in caplog.text
    assert sum(speakers_of(tmp_path / "out").values()) == 4


def test_na_and_nan_are_names_of_people(tmp_path: Path) -> None:
    rows = [f"{i}.wav,text {i},{who}" for i, who in enumerate(("Na", "Nan", "NA", "nan"))]
    found = read_transcripts(csv(tmp_path, "file,text,speaker", *rows))
    assert [line.speaker for line in found.lines] == ["Na", "Nan", None, None]


def test_nan_of_a_program_is_an_empty_cell_and_a_text_nan_is_a_text(tmp_path: Path) -> None:
    rows = [
        {"file": "0.wav", "text": "nan", "speaker": float("nan")},
        {"file": "1.wav", "text": float("nan"), "speaker": "ann"},
    ]
    path = tmp_path / "t.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)))
    found = read_transcripts(path)
    assert [(line.text, line.speaker) for line in found.lines] == [("nan", None)]
    assert found.faults[2].reason == "no_text"
    parts = [{"file": "0.wav", "text": "a", "offset": float("nan"), "duration": 2}]
    parts += [{"file": "0.wav", "text": "b", "offset": 2, "duration": 1.5}]
    path.write_text("\n".join(map(json.dumps, parts)))
    found = read_transcripts(path)
    assert found.faults[1].reason == "bad_times" and found.lines[0].start == 2


def test_a_column_that_may_hold_the_speaker_is_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    rows = [f"{i}.wav,text {i},{who}" for i, who in enumerate(["ann", "bob", "cat", "ann"])]
    folder, table = takes(tmp_path, 4), csv(tmp_path, "file,text,who", *rows)
    prepare(folder, table, tmp_path / "out")
    assert "if one of who does, name it with --speaker-column" in caplog.text
    caplog.clear()
    prepare(folder, table, tmp_path / "named", columns={"speaker": "who"})
    assert "--speaker-column" not in caplog.text
    rows = [f"{i}|Text {i}!|text {i}" for i in range(4)]  # LJSpeech
    prepare(folder, csv(tmp_path, *rows), tmp_path / "lj")
    assert "--speaker-column" not in caplog.text


def test_text_in_another_encoding_is_shown_as_it_was_read(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Few bytes make sense in many encodings: only a person sees which one is right."""
    folder = takes(tmp_path, 3)
    rows = ["file,text", "0.wav,on", "1.wav,물", "2.wav,집"]
    prepare(folder, csv(tmp_path, *rows, encoding="cp949"), tmp_path / "out")
    mistaken = "물".encode("cp949").decode("gb18030")
    assert f"read as gb18030: save it as UTF-8 if line 3 does not say: {mistaken}" in caplog.text


@pytest.mark.parametrize(
    ("encoding", "read_as", "text"),
    [
        ("big5", "big5hkscs", "今天天氣很好 我們去公園散步 請問火車站在哪裡 我的手機沒電了"),
        ("cp949", "cp949", "오늘 날씨가 좋습니다 우리는 공원에 갑니다 기차역이 어디에 있습니까"),
        ("cp932", "cp932", "今日はいい天気です 公園に行きましょう 駅はどこですか 日本語を学びます"),
        ("gbk", "gb18030", "今天天气很好 我们去公园散步 请问火车站在哪里 我的手机没电了"),
        ("cp1251", None, "сегодня хорошая погода мы идём в парк где находится вокзал один два"),
        ("cp1250", None, "dziś jest ładna pogoda idziemy do parku gdzie jest dworzec żółty kot"),
    ],
)
def test_regional_encodings_are_told_apart(
    encoding: str, read_as: str | None, text: str, tmp_path: Path
) -> None:
    """Those of one byte a character cannot be: such a table is to be saved anew."""
    texts = text.split() * 6
    rows = ["file,text", *(f"{i}.wav,{text}" for i, text in enumerate(texts))]
    table = csv(tmp_path, *rows, encoding=encoding)
    if read_as:
        found = read_transcripts(table)
        assert found.encoding == read_as and [line.text for line in found.lines] == texts
    else:
        with pytest.raises(DataError, match="save the whole file as UTF-8"):
            read_transcripts(table)


@pytest.mark.parametrize(
    "head", ["", "a.wav,turn on\n" * 90_000, "x.wav," + "今天天气很好" * 100_000 + "\n"]
)
def test_an_encoding_is_told_by_the_lines_beyond_ascii(head: str, tmp_path: Path) -> None:
    """However many others come first, and however long one of them is."""
    path, text = tmp_path / "t.csv", "打开电灯，请把门关上，今天天气很好"
    for separator in ("\n", "\r"):
        lines = [head.replace("\n", separator), *[f"b.wav,{text}{separator}"] * 9]
        path.write_bytes("".join(lines).encode("gbk"))
        read, encoding = read_text(path)
        assert encoding == "gb18030" and read.endswith(text + separator)


@pytest.mark.parametrize("words", ["père très", "für Müller", "año niño", "fiancé naïve", "Zürich"])
def test_a_few_accents_are_no_chinese(words: str, tmp_path: Path) -> None:
    rows = ["file,text", *(f"{i}.wav,all of it" for i in range(300))]
    rows += [f"a{i}.wav,{word}" for i, word in enumerate(words.split())]
    with pytest.raises(DataError, match=r"line 302: .*save the whole file as UTF-8"):
        read_transcripts(csv(tmp_path, *rows, encoding="cp1252"))


def test_valid_utf_8_is_never_another_encoding(tmp_path: Path) -> None:
    (tmp_path / "t.txt").write_bytes("file,text\na.wav,\ufffd\ufffd\n".encode())
    assert read_text(tmp_path / "t.txt") == ("file,text\na.wav,\ufffd\ufffd\n", "utf-8")


def test_dev_is_taken_from_train_where_the_table_names_none(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    people = ["ann", "ann", "bob", "bob", "cat", "cat", "dan", "dan", "eve"]
    rows = [
        f"{i}.wav,text {i},{who},{'test' if who == 'eve' else 'train'}"
        for i, who in enumerate(people)
    ]
    folder, table = takes(tmp_path, 9), csv(tmp_path, "file,text,speaker,split", *rows)
    with caplog.at_level(logging.WARNING):
        prepare(folder, table, tmp_path / "out", dev=0.2)
    assert "no utterance is of dev: 20 % of train become dev" in caplog.text
    assert speakers_of(tmp_path / "out") == {"train": 3, "dev": 1, "test": 1}
    prepare(folder, table, tmp_path / "none", dev=0.0)
    assert speakers_of(tmp_path / "none") == {"train": 4, "test": 1}


@pytest.mark.parametrize(
    "rows",
    [
        ["0.wav|Text 0!|text zero|1.00", "1.wav|Text 1!|text one|1.10"],
        ["0.wav|turn on the light|anna", "1.wav|turn it off|bob"],
        ["Datei|Satz|Sprecher", "0.wav|turn on the light|anna", "1.wav|turn it off|bob"],
        ["0.wav|打开电灯|1.33", "1.wav|关上窗户|1.10"],
    ],
)
def test_a_last_column_is_the_text_of_ljspeech_alone(rows: list[str], tmp_path: Path) -> None:
    """Or seconds, translations or names would be what is learned."""
    with pytest.raises(DataError, match="has no name that is known to be a column's: give it"):
        read_transcripts(csv(tmp_path, *rows))
    texts = ["He read Chapter 1, in 1929.", "And so on.", ""]
    spoken = ["he read chapter one, in nineteen twenty-nine.", "And so on.", ""]
    rows = [f"LJ001-{i}|{a}|{b}" for i, (a, b) in enumerate(zip(texts, spoken, strict=True))]
    found = read_transcripts(csv(tmp_path, *rows))
    assert [line.text for line in found.lines] == spoken[:2]


def test_parts_without_an_end_are_not_the_rest_of_their_recording(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Each would hold the speech of those after it, which may be in another split."""
    folder = takes(tmp_path, 2)
    rows = ["0.wav,0,one", "0.wav,0.2,two", "1.wav,0.1,three"]
    table = csv(tmp_path, "file,start,text,bis", *(f"{row},0.3" for row in rows))
    with pytest.raises(DataError, match=r"no column .* ends: name one end or .* \(it has bis\)"):
        prepare(folder, table, tmp_path / "out")
    table = csv(tmp_path, "file,begin,text,end_time", *(f"{row}," for row in rows))
    report = prepare(folder, table, tmp_path / "out", dev=0.0, test=0.0)
    assert report.left_out == {"no_end": 1} and report.splits["train"].utterances == 2
    assert "line 2: has no end, and another part of 0.wav begins later: left out" in caplog.text


def test_times_of_known_names_are_used_and_others_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    table = csv(tmp_path, "file,text,Start Time,end_time,gender", "0.wav,one,0.1,0.5,f")
    assert [(one.start, one.seconds) for one in read_transcripts(table).lines] == [(0.1, 0.4)]
    assert not caplog.text
    read_transcripts(csv(tmp_path, "file,text,t_start,t_end,gender", "0.wav,one,0.1,0.5,f"))
    assert "recordings are taken whole: if t_start, t_end tell which part" in caplog.text
    rows = ["0.wav,one,2026-11-27 10:00,2", "1.wav,two,,3"]
    found = read_transcripts(csv(tmp_path, "file,text,start_time,duration", *rows))
    assert [(one.start, one.seconds) for one in found.lines] == [(0.0, None)] * 2
    assert "recordings are taken whole: if start_time tell which part" in caplog.text
    rows = ["0.wav,one,0.1,noon", "1.wav,two,0.2,"]
    found = read_transcripts(csv(tmp_path, "file,text,start_time,end_time", *rows))
    assert [(one.start, one.seconds) for one in found.lines] == [(0.1, None), (0.2, None)]
    assert "taken from their start to the end: if end_time tell which part" in caplog.text
    found = read_transcripts(csv(tmp_path, "file,text,start_time,end_time", rows[0], "1.wav,b,1,2"))
    assert [(one.start, one.seconds) for one in found.lines] == [(1.0, 1.0)]
    assert found.faults[2].reason == "bad_times", "one wrong cell is the fault of its line alone"
    words = read_transcripts(csv(tmp_path, "file,start,end,text,length", "0.wav,0,3.5,hi,1"))
    assert [one.seconds for one in words.lines] == [3.5]


def test_an_array_of_json_objects_is_a_table(tmp_path: Path) -> None:
    rows = [{"audio": f"{i}.wav", "text": text} for i, text in enumerate(["one", "two", ""])]
    path = tmp_path / "t.json"
    for indent in (None, 2):
        path.write_text(json.dumps(rows, indent=indent))
        found = read_transcripts(path)
        assert [(line.number, line.text) for line in found.lines] == [(1, "one"), (2, "two")]
        assert list(found.faults) == [3]
    path.write_text("[\n" + ",\n".join(map(json.dumps, rows)) + ",\n]\n")
    with pytest.raises(DataError, match=r"begins as a JSON array and is none .*: write one object"):
        read_transcripts(path)
    path.write_text("{}\n3\n")
    with pytest.raises(DataError, match=r"line 1: it is not a JSON object with values\)"):
        read_transcripts(path)


def test_times_that_are_no_seconds_are_answered_with_seconds(tmp_path: Path) -> None:
    table = csv(tmp_path, "file,start,end,text", "0.wav,100,300,one")
    with pytest.raises(DataError, match=r"outside_recording.*: give times in seconds, within"):
        prepare(takes(tmp_path, 1), table, tmp_path / "out", dev=0.0, test=0.0)


def test_a_folder_whose_name_is_no_text_leaves_out_its_recordings(tmp_path: Path) -> None:
    """A recording that would be converted too: a FLAC whose header gives no length."""
    folder = takes(tmp_path, 1)
    foreign = folder / os.fsdecode("张三".encode("gbk"))
    foreign.mkdir()
    sf.write(tmp_path / "a.flac", np.zeros(8000), 16000)
    flac = bytearray((tmp_path / "a.flac").read_bytes())
    flac[21] &= 0xF0  # of 36 bits for the number of samples, in the first block
    flac[22:26] = bytes(4)
    (foreign / "a.flac").write_bytes(flac)
    table = csv(tmp_path, "file,text", "0.wav,one", "a.flac,two")
    report = prepare(folder, table, tmp_path / "out", dev=0.0, test=0.0)
    assert report.left_out == {"undecodable_name": 1} and report.splits["train"].utterances == 1


def test_onset_and_offset_are_a_start_and_an_end(tmp_path: Path) -> None:
    """As phonetics writes them; NeMo's offset is a start."""
    cases = {"onset,offset,duration": "1,3,2", "onset,offset": "1,3", "start,end,onset": "1,3,2",
             "start,end,onset,offset": "1,3,2,9", "onset,duration": "1,2"}  # fmt: skip
    for header, row in cases.items():
        (line,) = read_transcripts(csv(tmp_path, f"file,{header},text", f"a,{row},x")).lines
        assert (line.start, line.seconds) == (1, 2), header
    (line,) = read_transcripts(csv(tmp_path, "file,offset,duration,text", "a,3,2,x")).lines
    assert (line.start, line.seconds) == (3, 2)


def test_a_length_of_the_whole_file_does_not_lengthen_its_parts(tmp_path: Path) -> None:
    rows = ["a,0,2.5,60,one", "a,2.5,4,60,two", "b,1,late,60,three"]
    rows += ["c,5,-1,2,four", "c,5,0,2,five", "d,0.35,2,1.832,six"]  # no end, and a rounded one
    rows += ["e,0.2,0.8,1.0,seven", "f,0.5,2.5,2.9,eight"]  # of short files
    found = read_transcripts(csv(tmp_path, "file,start,end,duration,text", *rows)).lines
    assert [(one.start, pytest.approx(one.seconds)) for one in found] == [
        (0, 2.5), (2.5, 1.5), (1, 60), (5, 2), (5, 2), (0.35, 1.832), (0.2, 0.6), (0.5, 2)
    ]  # fmt: skip
    rows = ["a,0.10,2.95,3.0,little", "b,1,3,3,whole", "c,1,4,4,whole", "d,0.1,2.9,2.84,rounded"]
    rows += ["e,0.35,2.0,1.832,rounded", "f,0.5,3.0,2.9,exact", "g,0.0,55.000,60.000,exact"]
    found = read_transcripts(csv(tmp_path, "file,start,end,duration,text", *rows)).lines
    assert [one.seconds for one in found] == pytest.approx([2.85, 2, 3, 2.84, 1.832, 2.5, 55])


def test_errors_of_a_spreadsheet_are_no_text_and_no_person(tmp_path: Path) -> None:
    errors = ["#N/A", "#NV", "#NAME?", "#REF!", "#DIV/0!", "#BEZUG!", "#¡REF!"]
    rows = [f"{i}.wav,yes,{error}" for i, error in enumerate(errors)]
    rows += [f"{i}.wav,{error},ann" for i, error in enumerate(errors, len(errors))]
    found = read_transcripts(csv(tmp_path, "file,text,speaker", *rows, "x.wav,#GO!,#7"))
    assert [line.speaker for line in found.lines] == [None] * len(errors) + ["#7"]
    assert {fault.reason for fault in found.faults.values()} == {"no_text"}
    assert "but the error #NAME? of a spreadsheet" in found.faults[len(errors) + 4].what


def test_of_two_columns_without_names_the_one_of_files_is_known(tmp_path: Path) -> None:
    for rows in (["turn on,001.wav", "turn off,002.wav"], ["001.wav,turn on", "002.wav,turn off"]):
        found = read_transcripts(csv(tmp_path, *rows)).lines
        assert [(one.audio, one.text) for one in found] == [
            ("001.wav", "turn on"), ("002.wav", "turn off")
        ]  # fmt: skip


def test_a_quote_that_is_open_to_the_end_of_a_large_table_is_told(tmp_path: Path) -> None:
    rows = [f"{i}.wav,some words that are said in this recording" for i in range(5000)]
    path = csv(tmp_path, "file,text", "x.wav,one", 'y.wav,"two', *rows)
    with pytest.raises(DataError, match=r"line 3: .*a quote opens there and is not closed"):
        read_transcripts(path)


@pytest.mark.parametrize("name", ["talk.srt", "talk.vtt", "talk.eaf", "talk.TextGrid"])
def test_the_text_of_one_recording_is_no_table(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text("1\n00:00:01,000 --> 00:00:02,000\nhello there\n")
    with pytest.raises(DataError, match=r"the text of one recording.*give the folder"):
        read_transcripts(tmp_path / name)


def test_the_objects_of_an_array_are_counted_as_such(tmp_path: Path) -> None:
    rows = [{"audio": "a", "text": "one"}, {"audio": "b"}, {"audio": "c", "text": "two"}]
    (tmp_path / "t.json").write_text(json.dumps(rows, indent=2))
    found = read_transcripts(tmp_path / "t.json")
    assert [found.short_place(number) for number in found.faults] == ["object 2"]
    assert found.place(2).endswith("t.json, object 2")


def test_a_name_of_invisible_characters_is_none(tmp_path: Path) -> None:
    rows = ["a,one,\u200b", "b,two,", "c,three,ann"]
    found = read_transcripts(csv(tmp_path, "file,text,speaker", *rows)).lines
    assert [line.speaker for line in found] == [None, None, "ann"]
