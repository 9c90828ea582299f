"""Read the transcripts of a Kaldi data folder."""

import re
from pathlib import Path

from data_prep.lines import Fault, Transcripts, add_line
from data_prep.text_file import read_text


def read_kaldi(table: Transcripts) -> None:
    """Read a Kaldi data folder; commands in wav.scp are not run."""
    folder = table.path
    wavs, speakers = dict(_pairs(folder / "wav.scp")), dict(_pairs(folder / "utt2spk"))
    segments = {id: value.split() for id, value in _pairs(folder / "segments")}
    files = {id: value.split() for id, value in _pairs(folder / "reco2file_and_channel")}
    table.path = folder / "text"
    _, table.encoding = read_text(table.path)
    for number, (id, text) in enumerate(_pairs(table.path), 1):
        recording, *times = segments.get(id, [id]) or [""]
        wav, of_file = wavs.get(recording, ""), files.get(recording, [])[1:2]
        if wav.endswith("|"):
            what = f"{recording} is made by a command in wav.scp, which is not run"
            table.faults[number] = Fault("command", what)
            continue
        try:
            channel = _channel(times[2:], of_file)
        except KeyError as error:
            what = f"{recording} names the channel {error.args[0]}, neither A (the first) nor B"
            table.faults[number] = Fault("bad_channel", what)
            continue
        speaker = speakers.get(id, "")  # the utterance's id where no speaker is known
        cells = {"audio": wav, "text": text, "speaker": "" if speaker == id else speaker}
        if id in segments:
            start, end = (*times, "none", "none")[:2]
            # extract-segments takes an end of -1 for that of the recording.
            cells |= {"start": start, "end": "" if re.fullmatch(r"-1(\.0*)?", end) else end}
        add_line(table, number, cells | {"channel": channel})


def _channel(of_segment: list[str], of_file: list[str]) -> str:
    """Return the channel of an utterance, from 0, or "" if it names none.

    Kaldi counts the channels of segments from 0 (extract-segments), and those of
    reco2file_and_channel from 1. Raises KeyError for other names.
    """
    if of_segment:
        return {"A": "0", "B": "1", "0": "0", "1": "1"}[of_segment[0].upper()]
    return {"A": "0", "B": "1", "1": "0", "2": "1"}[of_file[0].upper()] if of_file else ""


def _pairs(path: Path) -> list[tuple[str, str]]:
    """Return the keys of a Kaldi table with their values; a missing file has none."""
    if not path.is_file():
        return []
    lines = (line.split(None, 1) for line in read_text(path)[0].split("\n"))
    return [(line[0], line[1].strip() if len(line) > 1 else "") for line in lines if line]
