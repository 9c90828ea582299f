"""Praat's and ELAN's annotations beside recordings.

The files in annotations/ are Praat's own (by praat-parselmouth 0.4.7) and of pympi-ling 1.71.
"""

import shutil
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import soundfile as sf
from hypothesis import given
from hypothesis import strategies as st

from asr.errors import DataError
from data_prep.elan import read_elan
from data_prep.subtitles import Part
from data_prep.table import prepare
from data_prep.textgrid import read_textgrid
from data_prep.tiers import Tier, parts_of
from data_prep.transcripts import read_transcripts

FILES = Path(__file__).parent / "annotations"
READERS = {".TextGrid": read_textgrid, ".eaf": partial(read_elan, name="a")}
PARTS = [("0.5", "1.25", 'say "hello" there'), ("1.25", "2", "打开 窗户")]


def record(path: Path) -> None:
    path.parent.mkdir(exist_ok=True)
    noise = np.random.default_rng(len(path.name)).standard_normal(48_000)
    sf.write(path, 0.1 * noise, 16_000)


def content(name: str) -> str:
    return (FILES / name).read_text("utf-16" if name.endswith("TextGrid") else "utf-8")


def spoken(parts: list[Part]) -> list[tuple[str, str, str]]:
    return [(part.start, part.end, part.text) for part in parts]


@pytest.mark.parametrize("name", ["long.TextGrid", "short.TextGrid"])
def test_textgrids_of_praat(name: str) -> None:
    tiers = read_textgrid(content(name))
    assert [tier.name for tier in tiers] == ["sentence", "phones", "bell"]
    assert spoken(tiers[0].parts) == PARTS and len(tiers[1].parts) == 1 and not tiers[2].parts
    lines = content(name).splitlines()
    assert ["hello" in lines[part.line - 1] for part in tiers[0].parts] == [True, False]
    assert "打开" in lines[tiers[0].parts[1].line - 1]


TEXTS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\r"), max_size=20)


@given(st.lists(st.tuples(TEXTS, st.lists(TEXTS, max_size=5)), max_size=4), st.booleans())
def test_textgrids_say_what_was_written(tiers: list[tuple[str, list[str]]], is_long: bool) -> None:
    """Texts may have quotes, which are written twice, and look like anything else."""

    def quoted(text: str) -> str:
        return '"' + text.replace('"', '""') + '"'

    values: list[tuple[str, object]] = [("File type", '"ooTextFile"'), ("Object", '"TextGrid"')]
    values += [("xmin", 0), ("xmax", 9.5), ("tiers?", "<exists>"), ("size", len(tiers))]
    for n, (name, texts) in enumerate(tiers, 1):
        values += [(f"item [{n}]:\nclass", '"IntervalTier"'), ("name", quoted(name))]
        values += [("xmin", 0), ("xmax", 9.5), ("intervals: size", len(texts))]
        for i, text in enumerate(texts):
            values += [("xmin", i), ("xmax", i + 1), ("text", quoted(text))]
    file = "\n".join(f"{what} = {value} ! {n} 3" if is_long else str(value)
                     for n, (what, value) in enumerate(values))  # fmt: skip
    found = read_textgrid(file)
    assert [(tier.name, spoken(tier.parts)) for tier in found] == [
        (
            name.strip(),
            [(str(i), str(i + 1), " ".join(text.split())) for i, text in enumerate(texts)
             if text.split()],
        )
        for name, texts in tiers
    ]  # fmt: skip


def test_an_elan_file_of_two_people(tmp_path: Path) -> None:
    """Each has a tier, and one of them another that belongs to it and has no times."""
    record(tmp_path / "takes/talk.wav")
    record(tmp_path / "takes/more.wav")
    shutil.copy(FILES / "a.eaf", tmp_path / "takes/talk.eaf")
    (tmp_path / "takes/more.txt").write_text("more", "utf-8")
    found = read_transcripts(tmp_path / "takes", {"text": "utterance"})
    assert [(line.speaker, line.text, line.start, line.seconds) for line in found.lines] == [
        (None, "more", 0.0, None), ("Ann", 'say "hello" & there', 0.5, 0.75),
        ("Bob", "打开 窗户", 1.25, 0.75),
    ]  # fmt: skip
    assert read_transcripts(tmp_path / "takes").lines == found.lines  # it is a usual name
    report = prepare(tmp_path / "takes", tmp_path / "takes", tmp_path / "out", dev=0.3, test=0.3)
    assert sum(split.utterances for split in report.splits.values()) == 3
    found = read_transcripts(tmp_path / "takes", {"text": "A@tr"})
    assert [(line.text, line.start, line.seconds) for line in found.lines[1:]] == [
        ("a translation", 0.5, 0.75)
    ]
    with pytest.raises(DataError, match=r"which has no columns: omit --speaker-column"):
        read_transcripts(tmp_path / "takes", {"text": "utterance", "speaker": "x"})


def test_a_tier_that_is_not_known_costs_no_other_text(tmp_path: Path) -> None:
    """As where an aligner has written words and phones beside the texts that it was given."""
    for name in ("a", "b"):
        record(tmp_path / f"{name}.wav")
        named = content("long.TextGrid").replace('"sentence"', '"words"')
        (tmp_path / f"{name}.TextGrid").write_text(named, "utf-8")
    (tmp_path / "a.lab").write_text("all of it", "utf-8")
    found = read_transcripts(tmp_path)
    assert [(line.audio, line.text) for line in found.lines] == [("a.wav", "all of it")]
    ((number, fault),) = found.faults.items()
    assert found.place(number).endswith("b.TextGrid") and fault.reason == "no_tier"
    found = read_transcripts(tmp_path, {"text": "words"})
    assert [(line.audio, line.text) for line in found.lines] == [
        (audio, text) for audio in ("a.wav", "b.wav") for _, _, text in PARTS
    ]


def tier(name: str, n_parts: int = 1, speaker: str = "", kind: str = "") -> Tier:
    return Tier(name, [Part(i + 1, "0", "1", name) for i in range(n_parts)], speaker, kind)


@pytest.mark.parametrize(
    ("tiers", "named", "texts"),
    [
        ([tier("a"), tier("b", 0)], None, ["a"]),
        ([tier("b", 0)], None, []),
        ([tier("Utterance"), tier("c")], None, ["Utterance"]),
        ([tier("text", 0), tier("anna")], None, []),  # a template that is not filled in yet
        ([tier("text", 0), tier("sentence")], None, ["sentence"]),
        ([tier("text", 1, "Ann", "x"), tier("notes", 1, "", "x")], None, ["text"]),
        ([tier("a", 1, "Ann"), tier("b", 1, "Bob")], None, ["a", "b"]),
        ([tier("text", 1, "Ann", "x"), tier("gloss", 1, "Ann", "text")], None, ["text"]),
        ([tier("text", 1, "Ann", "x"), tier("gloss", 1, "Ann", "text")], "text", ["text"]),
        ([tier("text", 1, "Ann", "x"), tier("gloss", 1, "Ann", "text")], "X", ["text"]),
        ([tier("a"), tier("b", 0), tier("c")], "b", []),
        ([tier("My words"), tier("phones")], "my-words", ["My words"]),
    ],
)
def test_the_tier_of_the_text(tiers: list[Tier], named: str | None, texts: list[str]) -> None:
    assert [part.text for part in parts_of(tiers, named)] == texts


@pytest.mark.parametrize(
    "tiers",
    [
        [tier("a"), tier("b", 1, "Ann")],
        [tier("a", 1, "Ann"), tier("b", 1, "Ann")],
        [tier("a", 1, "Ann", "x"), tier("b", 1, "Bob", "y")],  # who may have translated
        [tier("text"), tier("text")],
        [tier("phones")],
        [tier("a", 1, "Ann", "gloss")],
        [tier("Text", 1, "Ann", "x"), tier("Text-Bob", 1, "Bob", "x")],
        [tier("ann - words")],
    ],
)
def test_tiers_that_are_not_clear_are_asked_for(tiers: list[Tier]) -> None:
    with pytest.raises(DataError, match=r"it has .*: name the tier of the text by --text-column"):
        parts_of(tiers, None)
    with pytest.raises(DataError, match=r"it has no tier z, only "):
        parts_of(tiers, "z")


@pytest.mark.parametrize("name", ["long.TextGrid", "short.TextGrid", "a.eaf"])
def test_files_that_are_cut_are_refused(name: str) -> None:
    """Wherever it was: no part of the texts is taken for all of them."""
    whole = content(name).rstrip()
    read = READERS[Path(name).suffix]
    for end in range(len(whole)):
        with pytest.raises(DataError):
            read(whole[:end])


def test_other_files_are_left_out_with_a_sentence(tmp_path: Path) -> None:
    """Also what could read other files, or never ends."""
    elan = content("a.eaf")
    bomb = '<!DOCTYPE x [<!ENTITY a "1"><!ENTITY b SYSTEM "file:///etc/passwd">]>'
    shifted = elan.replace("<HEADER>", '<HEADER><MEDIA_DESCRIPTOR TIME_ORIGIN="500"/>')
    files = {
        "a.TextGrid": "hello",
        "b.TextGrid": content("long.TextGrid").replace("size = 3", "size = a"),
        "c.TextGrid": content("long.TextGrid").replace("size = 3", f"size = {'9' * 5000}"),
        "h.TextGrid": content("long.TextGrid").replace('"say ""hello"" ', '"say "hello" '),
        "i.TextGrid": content("long.TextGrid").replace("xmin = 0.5", "xmin = 0.5.1"),
        "j.TextGrid": content("long.TextGrid") + ' "more"\n', "k.eaf": shifted,
        "d.TextGrid": content("short.TextGrid").replace("IntervalTier", "OtherTier"),
        "e.eaf": elan.replace("<ANNOTATION_DOCUMENT", bomb + "<ANNOTATION_DOCUMENT"),
        "f.eaf": elan.replace("ANNOTATION_DOCUMENT", "html"), "g.eaf": "hello",
    }  # fmt: skip
    for name, text in files.items():
        record(tmp_path / "takes" / name.replace("TextGrid", "wav").replace("eaf", "wav"))
        (tmp_path / "takes" / name).write_text(text, "utf-8")
    record(tmp_path / "takes/ok.wav")
    shutil.copy(FILES / "long.TextGrid", tmp_path / "takes/ok.TextGrid")
    found = read_transcripts(tmp_path / "takes")
    assert {line.audio for line in found.lines} == {"ok.wav"}
    reasons = {Path(found.place(n)).name: fault.reason for n, fault in found.faults.items()}
    assert reasons == dict.fromkeys(files, "bad_text")


def test_words_of_elan_without_times_of_their_own_are_joined() -> None:
    """Those of an annotation that has times, and those between which a time is not known."""
    elan = content("a.eaf")
    own = (
        elan[elan.index("<REF_ANNOTATION") : elan.index("</REF_ANNOTATION>")] + "</REF_ANNOTATION>"
    )
    words = own.replace("a translation", "two").replace('"a4"', '"a5"')
    found = read_elan("\n" + elan.replace(own, own + words), "a")
    assert spoken(found[2].parts) == [("0.500", "1.250", "a translation two")]
    slots = '<TIME_SLOT TIME_SLOT_ID="ts9"/>'
    one, two = (
        f'<ALIGNABLE_ANNOTATION ANNOTATION_ID="{name}" TIME_SLOT_REF1="{start}" TIME_SLOT_REF2='
        f'"{end}"><ANNOTATION_VALUE>{name}</ANNOTATION_VALUE></ALIGNABLE_ANNOTATION>'
        for name, start, end in (("one", "ts2", "ts9"), ("two", "ts9", "ts5"))
    )
    found = read_elan(
        elan.replace("<TIME_ORDER>", "<TIME_ORDER>" + slots).replace(own, one + two), "a"
    )
    assert spoken(found[2].parts) == [("0.500", "2.000", "one two")]


def test_a_textgrid_may_be_saved_as_text(tmp_path: Path) -> None:
    record(tmp_path / "a.wav")
    (tmp_path / "a.txt").write_text(content("short.TextGrid"), "utf-8")
    assert [line.start for line in read_transcripts(tmp_path).lines] == [0.5, 1.25]
    found = read_transcripts(tmp_path, {"text": "phones"})
    assert [line.text for line in found.lines] == ["a"]
    (tmp_path / "a.txt").write_text(content("long.TextGrid"), "utf-16")
    assert read_transcripts(tmp_path, {"text": "phones"}).lines == found.lines
    (tmp_path / "a.txt").write_text('say "ooTextFile"', "utf-8")
    assert [line.text for line in read_transcripts(tmp_path).lines] == ['say "ooTextFile"']
    with pytest.raises(DataError, match=r"which has no columns: omit --text-column"):
        read_transcripts(tmp_path, {"text": "phones"})
    (tmp_path / "a.TextGrid").write_bytes(b"ooBinaryFile\x08TextGrid\0\0")
    ((_, fault),) = read_transcripts(tmp_path).faults.items()
    assert fault.what == "is a binary file of Praat: save it there as a text file"


ORIGINS = [("a.mp4", "500"), ("a.wav", "0"), ("b.wav", "700"), ("v.mp4", "500")]


@pytest.mark.parametrize(
    ("media", "name", "is_read"),
    [
        (ORIGINS, "a", True), (ORIGINS[1:], "a", True), (ORIGINS[:1], "a", False),
        (ORIGINS[2:], "a", False), (ORIGINS, "a.wav", True), (ORIGINS, "a.mp4", False),
        (ORIGINS, "b", False), ([ORIGINS[1], ORIGINS[3]], "a_16k", True),
    ],
)  # fmt: skip
def test_an_offset_of_the_recording_in_elan_is_refused(
    media: list[tuple[str, str]], name: str, is_read: bool
) -> None:
    """That of another file is not looked at where the recording is one of them."""
    kinds = {"mp4": "video/mp4", "wav": "audio/x-wav"}
    named = "".join(
        f'<MEDIA_DESCRIPTOR MEDIA_URL="file:///C:/my%20takes/{file}" TIME_ORIGIN="{origin}" '
        f'MIME_TYPE="{kinds[file[-3:]]}"/>'
        for file, origin in media
    )
    elan = content("a.eaf").replace("<HEADER>", "<HEADER>" + named)
    if is_read:
        assert len(read_elan(elan, name)) == 3
    else:
        with pytest.raises(DataError, match=r"TIME_ORIGIN"):
            read_elan(elan, name)


def test_names_that_elan_gives_once_are_not_twice() -> None:
    elan = content("a.eaf")
    for again in (elan.replace('"a3"', '"a2"'), elan.replace('ID="ts3"', 'ID="ts2"')):
        with pytest.raises(DataError, match=r"it has two (annotations a2|time slots ts2)"):
            read_elan(again, "a")
    with pytest.raises(DataError, match=r"its times are NTSC-frames"):
        read_elan(elan.replace("<HEADER", '<HEADER TIME_UNITS="NTSC-frames"'), "a")


def test_times_that_elan_does_not_know(tmp_path: Path) -> None:
    """A time slot without a value, one that is none, and annotations that belong to each other."""
    elan = content("a.eaf").replace('TIME_VALUE="500"', "").replace('"1250"', f'"{"9" * 5000}"')
    looped = elan.replace('ANNOTATION_REF="a2"', 'ANNOTATION_REF="a4"')
    assert looped != elan
    assert {part.start for tier in read_elan(looped, "a") for part in tier.parts} == {"nan", "inf"}
    record(tmp_path / "a.wav")
    record(tmp_path / "b.wav")
    (tmp_path / "a.eaf").write_text(looped, "utf-8")
    (tmp_path / "b.txt").write_text("b", "utf-8")
    found = read_transcripts(tmp_path, {"text": "utterance"})
    assert [fault.reason for fault in found.faults.values()] == ["bad_times", "bad_times"]
    assert found.place(1) == f"{tmp_path / 'a.eaf'}, line 14"


def test_a_person_who_is_named_in_one_file_has_no_second_name(tmp_path: Path) -> None:
    """The folder's would be one: a person in two splits. Folders that name none tell the people."""
    for who in ("anna", "bob"):
        for i in (1, 2):
            record(tmp_path / f"{who}{i}.wav")
            (tmp_path / who).mkdir(exist_ok=True)
            shutil.move(tmp_path / f"{who}{i}.wav", tmp_path / who / f"{i}.wav")
            shutil.copy(FILES / "long.TextGrid", tmp_path / who / f"{i}.TextGrid")
    (tmp_path / "anna/2.TextGrid").unlink()
    shutil.copy(FILES / "a.eaf", tmp_path / "anna/2.eaf")
    found = read_transcripts(tmp_path).lines
    speakers = {(Path(line.audio).as_posix(), line.speaker) for line in found}
    assert speakers == {("anna/1.wav", None), ("anna/2.wav", "Ann"), ("anna/2.wav", "Bob"),
                        ("bob/1.wav", "bob"), ("bob/2.wav", "bob")}  # fmt: skip
    two = (tmp_path / "anna/2.eaf").read_text("utf-8")
    (tmp_path / "anna/2.eaf").write_text(two.replace('"Ann"', '"Anna"').replace('"Bob"', '"?"'))
    found = read_transcripts(tmp_path).lines  # the same person, and one who is not named
    assert {(Path(line.audio).parent.name, (line.speaker or "").lower()) for line in found} == {
        ("anna", "anna"), ("anna", ""), ("bob", "bob")
    }  # fmt: skip
