"""Recordings that end before the file does, or begin after it: all is decoded, or reported."""

import io
import struct
import time

import numpy as np
import pytest

from asr.audio.recording import Recording
from asr.decoding.request import Request
from asr.errors import AudioError
from asr.transcription.chunks import ChunkedRecording
from tests.helpers import encode_audio, read_all

RATE = 16000
# Without the frame that tells the length: a VBR stream as a radio sends it.
XING_BYTES = 288


def hum(pitch: float, seconds: float = 1.0, rate: int = RATE) -> np.ndarray:
    return 0.3 * np.sin(2 * np.pi * pitch * np.arange(int(seconds * rate)) / rate)


def pitches(wave: np.ndarray) -> set[int]:
    """The pitches of each 100 ms, rounded to 50 Hz."""
    blocks = wave[: len(wave) // 1600 * 1600].reshape(-1, 1600) * np.hanning(1600)
    return {int(10 * f / 50 + 0.5) * 50 for f in np.abs(np.fft.rfft(blocks)).argmax(1)}


def warned(data: bytes) -> str:
    (warning,) = read_all(io.BytesIO(data), RATE, name="a.mp3").warnings
    return warning


FORMATS = [("WAV", ""), ("FLAC", ""), ("OGG", "VORBIS"), ("OGG", "OPUS"), ("MP3", "")]


@pytest.mark.parametrize(("kind", "subtype"), FORMATS)
def test_recordings_behind_each_other_in_a_file_are_all_decoded(kind, subtype) -> None:
    """S10, M12: chained Ogg, concatenated MP3, wav + wav; at other rates and channels too."""
    one = encode_audio(hum(400), RATE, kind, subtype)
    two = encode_audio(hum(1000), RATE, kind, subtype)
    third = encode_audio(np.stack([hum(2000, rate=24000)] * 2, 1), 24000, kind, subtype)
    audio = read_all(io.BytesIO(one + two + third), RATE)
    assert audio.seconds == pytest.approx(3) and audio.warnings == ()
    assert abs(len(audio.wave) - 3 * RATE) <= 3
    for i, pitch in enumerate((400, 1000, 2000)):
        assert pitches(audio.wave[i * RATE + 1600 : (i + 1) * RATE - 1600]) == {pitch}


ID3 = b"ID3\x04\0\0\0\0\1\0" + bytes(128)
MP3 = [encode_audio(hum(pitch, 3.0), RATE, "MP3") for pitch in (400, 1000)]


@pytest.mark.parametrize(
    "data",
    [
        MP3[0] + MP3[1][XING_BYTES:], MP3[0][XING_BYTES:] + MP3[1], ID3 + MP3[0] + ID3 + MP3[1],
        MP3[0] + b"TAG" + bytes(125) + MP3[1], MP3[0][XING_BYTES:] + ID3 + MP3[1][XING_BYTES:],
        MP3[0] + ID3 + MP3[1] + ID3,
    ],
    ids=["second_has_no_length", "first_has_none", "tags", "old_tag", "tag_alone", "tag_at_end"],
)  # fmt: skip
def test_mp3s_behind_each_other_need_no_length_and_may_have_tags(data) -> None:
    """S10: libmpg123 stops at the length of the first, or at a length that it guessed."""
    audio = read_all(io.BytesIO(data), RATE)
    assert audio.seconds == pytest.approx(6, abs=0.25) and audio.warnings == ()
    assert pitches(audio.wave[3200:40000]) == {400} and pitches(audio.wave[56000:92000]) == {1000}


@pytest.mark.parametrize("kind", ["FLAC", "OGG", "MP3"])
def test_what_is_left_of_a_file_is_told(kind) -> None:
    """S10: what follows cannot be decoded; the warning says how much that is."""
    one, two = (encode_audio(hum(p, 3.0), RATE, kind) for p in (400, 1000))
    junk = np.random.default_rng(0).integers(0, 255, 20_000, np.uint8).tobytes()
    follow = {"FLAC": two[:60] + junk, "OGG": two[:60] + junk, "MP3": junk}[kind]
    percent = round(100 * len(follow) / len(one + follow))
    assert warned(one + follow) == (
        f"a.mp3 goes on after 3.00 seconds with {percent} % of its bytes, which could not be "
        "decoded"
    )


def test_streams_side_by_side_in_an_ogg_file_are_not_a_chain() -> None:
    """S10: the pages that begin them come first, together."""
    one, two = (encode_audio(hum(p), RATE, "OGG", "VORBIS") for p in (400, 1000))
    end = one.index(b"OggS", 4)
    both = one[:end] + two[: two.index(b"OggS", 4)] + one[end:]
    audio = read_all(io.BytesIO(both), RATE)
    assert audio.seconds == 1 and pitches(audio.wave[1600:]) == {400}


@pytest.mark.parametrize("riff", [0, 8, 36, 0xFFFFFFFF])
def test_a_wav_whose_lengths_were_never_written_goes_on_to_its_end(riff) -> None:
    """M12: a program that cannot seek leaves zeros."""
    data = bytearray(encode_audio(hum(400)))
    data[4:8], data[40:44] = struct.pack("<I", riff), bytes(4)
    audio = read_all(io.BytesIO(data), RATE)
    assert audio.seconds == 1 and audio.warnings == () and pitches(audio.wave[1600:]) == {400}


def test_a_wav_that_says_it_is_empty_is() -> None:
    """M12: its own length covers what follows the data."""
    data = bytearray(encode_audio(np.zeros(0)))
    data += b"LIST" + struct.pack("<I", 100) + bytes(100)
    data[4:8] = struct.pack("<I", len(data) - 8)
    with pytest.raises(AudioError, match="holds no audio"):
        read_all(io.BytesIO(data), RATE)


@pytest.mark.parametrize("junk", [b"", bytes(5000), bytes(200_000)], ids=["none", "5kB", "200kB"])
@pytest.mark.parametrize("cut", [0, XING_BYTES + 30, 1000])
def test_an_mp3_may_begin_inside_a_frame_or_after_zeros(junk, cut) -> None:
    """M12: a recording of a stream begins anywhere."""
    audio = read_all(io.BytesIO(junk + MP3[0][cut:]), RATE)
    assert 2.7 < audio.seconds < 3.2 and audio.warnings == ()
    assert pitches(audio.wave[8000:40000]) == {400}


def unknown_length(flac: bytes) -> bytes:
    """The same without its number of samples."""
    data = bytearray(flac)
    data[21] &= 0xF0
    data[22:26] = bytes(4)
    return bytes(data)


TOLD = encode_audio(np.zeros((384_000, 8), np.int16), 384_000, "FLAC")


@pytest.mark.parametrize("is_told", [True, False])
def test_samples_of_all_channels_are_limited(is_told) -> None:
    """C1: at once if the header says so, else while reading."""
    flac = TOLD if is_told else unknown_length(TOLD)
    recording = Recording(io.BytesIO(flac), RATE, max_samples=2**20, max_seconds=60)
    with pytest.raises(AudioError, match="1048576 samples of all channels") as caught:
        list(recording)
    assert caught.value.code == "too_long"
    assert recording.n_samples == 0 if is_told else 2**20 < recording.n_samples < 2**21


def test_reading_pauses_in_slices_and_ends_within_a_block_when_cancelled() -> None:
    """C1: a slice is 2**21 samples of all channels, whatever the length of a chunk."""
    recording, request = Recording(io.BytesIO(unknown_length(TOLD)), RATE), Request()
    slices = ChunkedRecording(recording, 20.0, request).slices()
    assert next(slices) is None and 2**21 <= recording.n_samples < 2**21 + 2**18
    before, request.is_cancelled = recording.n_samples, True
    assert list(slices) == [] and recording.n_samples - before <= 2**17


def test_many_empty_recordings_in_a_file_are_work_that_is_limited() -> None:
    """C1, S10: opening each costs time although none holds a sample."""
    empty = encode_audio(np.zeros(0))
    recording = Recording(io.BytesIO(empty * 1000), RATE, max_samples=2**20)
    with pytest.raises(AudioError) as caught:
        list(recording)
    assert caught.value.code == "too_long" and recording.n_samples < 2**21


def test_thousands_of_damaged_recordings_in_a_file_cost_what_their_samples_do() -> None:
    """C1, S10: the search for the next begins where the last ended, and warnings are few."""
    damaged = MP3[0][:3000] + b"\1" * 1000
    recording = Recording(io.BytesIO(MP3[0] + damaged * 1000), RATE, max_samples=2**23)
    began = time.thread_time()
    with pytest.raises(AudioError) as caught:
        list(recording)
    assert caught.value.code == "too_long" and time.thread_time() - began < 5
    assert 0 < len(recording.warnings) <= 8


def tag(n_comments: int, revision: int = 0) -> bytes:
    """An ID3 tag of so many comments, each of its own description."""
    frames = b"".join(
        b"COMM" + struct.pack(">I", 12) + b"\0\0\0eng%06x\0x" % i for i in range(n_comments)
    )
    length = bytes(len(frames) >> 7 * i & 127 for i in (3, 2, 1, 0))
    return b"ID3\3" + bytes([revision, 0]) + length + frames


def wav_of(mp3: bytes) -> bytes:
    """A WAV whose data are an MP3."""
    head = b"fmt " + struct.pack("<IHHIIHH", 30, 0x55, 1, RATE, 8000, 1, 0)
    head += struct.pack("<HHIHHH", 12, 1, 2, 576, 1, 0) + b"fact" + struct.pack("<II", 4, 48000)
    body = b"WAVE" + head + b"data" + struct.pack("<I", len(mp3)) + mp3
    return b"RIFF" + struct.pack("<I", len(body)) + body


MANY, LAYER_II = tag(30_000), b"\xff\xf5\x84\xc0" + bytes(284)
NO_LENGTH = [mp3[XING_BYTES:] for mp3 in MP3]


@pytest.mark.parametrize(
    ("data", "seconds"),
    [
        (MANY + MP3[0], 3), (tag(1) * 900 + MANY + MP3[0], 3), (MP3[0] + MANY + MP3[1], 6),
        (NO_LENGTH[0] + tag(30_000, 1) + NO_LENGTH[1], 6), (wav_of(MP3[0]), 3),
        (MP3[0] + tag(1, 1) + MP3[1], 6), (tag(1) * 9 + bytes(99) + tag(1) + MP3[0], 3),
    ],
    ids=["begin", "many", "middle", "revision", "wav", "M2", "zeros"],
)  # fmt: skip
def test_tags_cost_no_time_and_no_audio(data, seconds) -> None:
    """K1: libmpg123 compared each comment of a tag with all before it. M2: of any revision."""
    began = time.thread_time()
    audio = read_all(io.BytesIO(data), RATE)
    assert time.thread_time() - began < 5
    assert audio.seconds == pytest.approx(seconds, abs=0.4) and audio.warnings == ()
    assert pitches(audio.wave[-40000:-8000]) == {1000 if seconds == 6 else 400}


@pytest.mark.parametrize(
    "data",
    [
        tag(1) * 2000 + MP3[0], wav_of(MANY + MP3[0]), MANY, MANY[:-9], tag(1)[:9],
        LAYER_II * 9 + MANY + MP3[0], b"\xff\xf3\x14\xc0" + bytes(20) + MANY + MP3[0],
    ],
    ids=["many", "wav", "tag", "cut", "cut_short", "other_layer", "short_frame"],
)  # fmt: skip
def test_tags_in_what_cannot_be_decoded_cost_no_time(data) -> None:
    """K1: no audio behind them; a WAV of MP3 with tags; broken frames before them."""
    began = time.thread_time()
    with pytest.raises(AudioError):
        read_all(io.BytesIO(data), RATE)
    assert time.thread_time() - began < 5


def test_a_large_picture_before_an_mp3_is_skipped() -> None:
    """K1: tags with 4 MB are usual."""
    picture = b"APIC" + struct.pack(">I", 2**22) + bytes(2) + b"\xff\xe2ID3\4\0" * 2**19
    length = bytes(len(picture) >> 7 * i & 127 for i in (3, 2, 1, 0))
    audio = read_all(io.BytesIO(b"ID3\3\0\0" + length + picture + MP3[0]), RATE)
    assert audio.seconds == pytest.approx(3) and audio.warnings == ()


def test_a_tag_that_is_longer_than_the_file_is_told() -> None:
    """K1, M2."""
    cut = MP3[0] + tag(1)[:6] + b"\x7f" * 4 + MP3[1]
    assert "could not be decoded" in warned(cut)


@pytest.mark.parametrize(
    "junk", [b"\xff" * 2**24, b"\xff\xe2" * 2**23, b"Xing" * 2**20, b"ID3\4" * 2**20], ids=range(4)
)
def test_the_search_for_the_next_mp3_takes_a_time_that_is_linear(junk) -> None:
    """S5: 25 MB of 0xff took 1.8 s in one slice."""
    began = time.thread_time()
    assert read_all(io.BytesIO(MP3[0] + junk), RATE).warnings
    assert time.thread_time() - began < 5


OGG = encode_audio(hum(400, 3.0), RATE, "OGG", "VORBIS")
FALSE = b"OggS\xff\xff\xff"


def page(body: bytes, flags: int = 0, is_whole: bool = True) -> bytes:
    """An Ogg page of another stream, with its checksum (RFC 3533, 6)."""
    lacing = bytes([255] * (len(body) // 255) + [len(body) % 255])
    data = b"OggS\0" + bytes([flags]) + bytes(8) + b"abcd" + bytes(8) + bytes([len(lacing)])
    data += lacing + body
    register = 0
    for byte in data:
        register ^= byte << 24
        for _ in range(8):
            register = register << 1 ^ (0x104C11DB7 if register >> 31 else 0)
    return data[:22] + struct.pack("<I", register + 1 - is_whole) + data[26:]


NESTED = FALSE * 9000
MIDDLE = OGG.index(b"OggS", len(OGG) // 2)


@pytest.mark.parametrize(
    ("data", "reported"),
    [
        (OGG + FALSE * 2**19, "100 % of its bytes"), (MP3[0] + OGG + FALSE * 2**19, "its bytes"),
        (OGG + page(NESTED, is_whole=False) * 60, "100 % of its bytes"),
        (OGG + page(NESTED) * 60, "100 % of its bytes"), (FALSE * 2**19 + OGG, None),
        (OGG[:MIDDLE] + page(b"") * 60_000 + OGG[MIDDLE:], ""), (OGG + bytes(2**22), ""),
        (OGG[:MIDDLE] + FALSE * 300 + OGG[MIDDLE:], " 2100 bytes inside it"),
        (OGG + b"OggS" * 2**20, "its bytes"),
        (OGG + b"OggS\0" * 2**19, "its bytes"), (OGG + b"TAG" + bytes(125), ""),
    ],
    ids=[
        "false", "after_mp3", "nested", "nested_in_whole", "first", "empty", "zeros", "middle",
        "mark", "version", "tag"
    ],
)  # fmt: skip
def test_false_pages_of_an_ogg_file_cost_no_time_and_no_audio(data, reported) -> None:
    """K2: libogg computed the checksum of up to 65 kB for each."""
    began = time.thread_time()
    if reported is None:
        with pytest.raises(AudioError):
            read_all(io.BytesIO(data), RATE)
    else:
        audio = read_all(io.BytesIO(data), RATE)
        assert audio.seconds == pytest.approx(6 if data[:2] == b"\xff\xf3" else 3)
        assert reported in "".join(audio.warnings) and bool(reported) == bool(audio.warnings)
        assert pitches(audio.wave[3200:40000]) == {400}
    assert time.thread_time() - began < 5


def test_a_damaged_page_of_an_ogg_file_does_not_end_it() -> None:
    """K2: one page is missing, what follows is decoded."""
    data = bytearray(encode_audio(hum(400, 20.0), RATE, "OGG", "VORBIS"))
    third = len(data) // 3
    data[third] ^= 1
    audio = read_all(io.BytesIO(data), RATE)
    assert "bytes inside it could not be decoded" in audio.warnings[0]
    assert 12 < len(audio.wave) / RATE <= 20 and pitches(audio.wave[-40000:-1600]) == {400}


def test_the_search_for_the_end_of_a_recording_pauses() -> None:
    """K2: a slice takes some 10 ms, and pages without samples are work that is limited."""
    data = OGG[:MIDDLE] + page(b"") * 100_000 + OGG[MIDDLE:]
    assert list(ChunkedRecording(Recording(io.BytesIO(data), RATE), 20.0).slices()).count(None) > 5
    with pytest.raises(AudioError, match="samples of all channels"):
        read_all(io.BytesIO(data), RATE, max_samples=2**22)
