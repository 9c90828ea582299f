"""Recordings of one's own and a table of their transcripts, as a corpus with speakers kept apart.

`data_prep.transcripts` reads the table: its formats and the names of its columns. Files that
libsndfile does not read (m4a, webm, mp4, aac), or that give no length, become FLAC beside the cuts.
"""

import logging
import os
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from hashlib import sha256
from itertools import chain
from pathlib import Path, PurePath, PurePosixPath
from typing import cast

import soundfile as sf
from rich.console import Console
from rich.progress import track

from asr.audio.media import is_installed
from asr.errors import AudioError, ConfigError, DataError, NotWrittenError
from asr.normalization import normalize_text
from asr.runtime.files import remove_stale
from asr.runtime.storage import RemoteFile
from asr.runtime.threads import usable_cpus
from data_prep.convert import copy_name, needs_conversion, needs_ffmpeg, to_flac
from data_prep.corpus_writer import LeftOut, Report, say_left_out, write_corpus
from data_prep.cuts import Cluster, Utterance
from data_prep.lines import Line, Transcripts
from data_prep.recordings import Recordings, key_of
from data_prep.remote import folder_for
from data_prep.splits import Pairs, Splits, as_the_table_says, divide, with_dev
from data_prep.transcripts import read_transcripts

log = logging.getLogger(__name__)

COPIES = "audio"  # folder in `out`


def prepare(
    recordings: Path | str,
    transcripts: Path | Transcripts,
    out: Path | str,
    *,
    columns: Mapping[str, str] | None = None,
    dev: float = 0.1,
    test: float = 0.1,
    jobs: int | None = None,
    cluster: Cluster | None = None,
) -> Report:
    """Write the cuts of a folder of recordings and its table to `out`; strings are URLs.

    The table may be one that `read_transcripts` has read; `columns` are those of a path.
    `dev` and `test` are shares of the utterances. Where the table has no column of splits, whole
    speakers go to dev and test; with too few speakers whole recordings do, which is said. Where its
    splits lack dev, a share of train is dev. Raises DataError where the table cannot be read or
    nothing in it can be used.
    """
    if dev + test >= 1:
        raise ConfigError(f"dev and test are {dev:g} and {test:g} of all: leave some for training")
    if isinstance(recordings, Path) and not recordings.is_dir():
        raise DataError(f"{recordings}: there is no such folder: give the folder of the recordings")
    left_out: list[LeftOut] = []
    with folder_for(out) as folder:
        files = Recordings(recordings, folder / COPIES)
        table = transcripts
        if isinstance(table, Path):
            table = read_transcripts(table, columns, files)
        if table.encoding != "utf-8":
            foreign = next(one for one in table.lines if one.number == table.foreign)
            place = table.short_place(foreign.number)
            log.warning("%s is read as %s: save it as UTF-8 if %s does not say: %s",
                        table.path, table.encoding, place, foreign.text)  # fmt: skip
        pairs = _utterances(table, files, left_out)
        splits = as_the_table_says(table, pairs, left_out)
        if splits:
            splits = with_dev(splits, dev)
        else:
            _say_speakers(table)
            splits = divide([one for _, one in pairs], {"test": test, "dev": dev})
        copies = out / COPIES if isinstance(out, Path) else None
        usable = _converted(splits, recordings, copies, left_out, jobs)
        name = PurePosixPath(str(recordings)).name
        report = write_corpus(
            usable, folder, corpus=name, left_out=left_out, jobs=jobs, cluster=cluster
        )
    for split in ("train", "dev"):  # those of the table may all be unreadable
        if split not in report.splits or not report.splits[split].utterances:
            log.warning("no utterance is in %s, which training needs", split)
    return report


def _utterances(table: Transcripts, files: Recordings, left_out: list[LeftOut]) -> Pairs:
    """Return the lines whose recordings are there, each with its utterance; list the others."""
    found: list[tuple[Line, Utterance]] = []
    said, speakers, why = list[str](), dict[str, str](), ""
    owners = dict[str, tuple[Path | RemoteFile, object]]()
    for number, fault in table.faults.items():
        left_out.append(LeftOut(table.short_place(number), "", str(table.path), fault.reason))
        said.append(f"{table.place(number)}: {fault.what}")
    people = _people(table)
    for line in table.lines:
        who = line.speaker or ""
        # Several people may speak in the parts of a recording.
        named = people[line.audio] if who and not line.is_part else frozenset[str]()
        try:
            path = files.find(line.audio, table.folder, who, named)
        except DataError as error:
            left_out.append(LeftOut(table.short_place(line.number), "", line.audio, "missing"))
            said.append(f"{table.place(line.number)}: {error}")
            why = why or f"{table.short_place(line.number)}: {error}"
            continue
        # A person is one, however the name is written.
        speaker = speakers.setdefault(_key_of_speaker(line.speaker or ""), line.speaker or "")
        one = _utterance(line, speaker, path, files.within[path])
        part = (line.start, line.seconds) if line.is_part else None
        if owners.setdefault(one.id, (path, part)) != (path, part):
            # a-b.wav and a/b.wav, a.wav and a.flac, or parts of one recording that begin together
            of = os.fsencode(files.within[path]) + (f" {part}".encode() if part else b"")
            one = replace(one, id=f"{one.id}-{sha256(of).hexdigest()[:8]}")
        found.append((line, one))
    _say_unnamed(found, files)
    whole = _with_ends(_without_sides(found), table, left_out, said)
    pairs = _of_one_text(whole, table, left_out, said)
    say_left_out(said, is_listed=bool(pairs))
    if found and not pairs:
        raise DataError(f"{table.path}: gives every recording several texts: keep one line of each")
    if not pairs:
        columns = ", ".join([*table.columns.values(), *table.unused]) or "no header"
        advice = f", and which column holds the files (--audio-column; it has {columns})"
        raise DataError(
            f"{table.path}: none of its {len(table.lines)} recordings is in {files.root} by its "
            f"name ({why}): check the folder and the names{advice if table.columns else ''}"
        )
    return pairs


def _people(table: Transcripts) -> dict[str, set[str]]:
    """Return the speakers of each recording as the table names it."""
    found = defaultdict[str, set[str]](set)
    for line in table.lines:
        if line.speaker:
            found[line.audio].add(key_of(line.speaker))
    return found


def _say_speakers(table: Transcripts) -> None:
    """Tell which columns may hold the speaker, where none is known to."""
    is_known = "speaker" in table.columns or any(line.speaker for line in table.lines)
    if table.unused and not is_known:
        log.warning("%s: no column is known to hold the speaker: if one of %s does, name it with "
                    "--speaker-column", table.path, ", ".join(table.unused))  # fmt: skip


def _key_of_speaker(name: str) -> str:
    """Return a name as it is compared: widths, cases and spaces are written in several ways."""
    return key_of(normalize_text(name))


def _say_unnamed(found: Pairs, files: Recordings) -> None:
    """Tell how many recordings of the folder are not used, in any format, where others are."""
    used = {files.within[one.path].with_suffix("") for _, one in found}
    unnamed = sorted(
        str(p) for p, within in files.within.items() if within.with_suffix("") not in used
    )
    if found and unnamed:
        log.warning("%d of %d recordings in %s have no text that can be used, such as %s",
                    len(unnamed), len(files.within), files.root, unnamed[0])  # fmt: skip


def _with_ends(found: Pairs, table: Transcripts, left_out: list[LeftOut], said: list[str]) -> Pairs:
    """Return the lines but those that have no end where another begins later; list these.

    Their parts would have the speech of the others too. Raises DataError where none has an end.
    """
    starts: dict[Path | RemoteFile, float] = {}
    for line, one in found:
        starts[one.path] = max(line.start, starts.get(one.path, 0.0))
    is_open = [line.seconds is None and line.start < starts[one.path] for line, one in found]
    if any(is_open) and table.columns and not {"end", "seconds"} & table.columns.keys():
        raise DataError(
            f"{table.path}: has starts of parts and no column that is known to hold their ends: "
            f"name one end or duration (it has {', '.join(table.unused) or 'no others'})"
        )
    for (line, one), has_no_end in zip(found, is_open, strict=True):
        if has_no_end:
            left_out.append(LeftOut(one.id, "", str(one.path), "no_end"))
            said.append(
                f"{table.place(line.number)}: has no end, and another part of {line.audio} begins "
                "later"
            )
    return [pair for pair, has_no_end in zip(found, is_open, strict=True) if not has_no_end]


def _of_one_text(
    found: Pairs, table: Transcripts, left_out: list[LeftOut], said: list[str]
) -> Pairs:
    """Return the lines but those that give one part of a recording several texts; list these."""
    texts: dict[str, set[str]] = defaultdict(set)
    for line, one in found:
        texts[one.id].add(normalize_text(line.text))
    for line, one in found:
        if len(texts[one.id]) > 1:
            left_out.append(LeftOut(one.id, "", str(one.path), "several_texts"))
            said.append(
                f"{table.place(line.number)}: another line has another text for {line.audio}, and "
                + ("the same start and end: correct one of them" if line.is_part else
                   "no columns start and duration (or end) tell which part has which")
            )  # fmt: skip
    return [(line, one) for line, one in found if len(texts[one.id]) == 1]


def _utterance(line: Line, speaker: str, path: Path | RemoteFile, within: PurePath) -> Utterance:
    """Return an utterance, whose id is its path in the folder, and its part of a longer file."""
    name = within.with_suffix("").as_posix().replace("/", "-")
    id = re.sub(r"\s", "_", name) + (f"-{line.start:.2f}" if line.is_part else "")
    id += f"-channel{line.channel + 1}" if line.channel is not None else ""
    return Utterance(id, path, line.text, speaker, line.start, line.seconds, line.channel)


def _without_sides(found: Pairs) -> Pairs:
    """Return the lines; of a file that holds one side of a call alone none names the channel."""
    channels = defaultdict[Path | RemoteFile, set[int | None]](set)
    for _, one in found:
        channels[one.path].add(one.channel)
    alone = {
        path
        for path, named in channels.items()
        if len(named) == 1 and named.isdisjoint({None, 0}) and _is_mono(path)
    }
    return [(line, replace(one, channel=None) if one.path in alone else one) for line, one in found]


def _is_mono(path: Path | RemoteFile) -> bool:
    with suppress(sf.LibsndfileError):  # which is reported where the recording is checked
        return isinstance(path, Path) and bool(sf.info(path).channels == 1)
    return False


def _converted(
    splits: Splits, root: Path | str, copies: Path | None, left_out: list[LeftOut],
    jobs: int | None,
) -> Splits:  # fmt: skip
    """Return the splits that are not empty, with FLAC in `copies` where libsndfile reads no file.

    Recordings by URL stay as they are. Raises ConfigError where PyAV is needed and not installed,
    or there is no folder for copies; DataError where a copy cannot be written.
    """
    paths = list(dict.fromkeys(one.path for one in chain(*splits.values())))
    here = [path for path in paths if isinstance(path, Path) and isinstance(root, Path)]
    foreign = [path for path in here if needs_conversion(path)]
    found: dict[Path | RemoteFile, Path | AudioError] = {}
    if foreign:
        _check_convertible(foreign, copies)
        assert copies and isinstance(root, Path)
        copy_of = {
            path: copies / path.parent.relative_to(root) / copy_name(path.name) for path in foreign
        }
        for folder in {copy.parent for copy in copy_of.values()}:
            remove_stale(folder)
        with ThreadPoolExecutor(jobs or usable_cpus()) as pool:
            converted = pool.map(_convert, foreign, copy_of.values())
            made = zip(foreign, converted, strict=True)
            bar = Console(stderr=True)
            found = dict(track(made, "converting", len(foreign), console=bar))
    say_left_out([str(error) for error in found.values() if isinstance(error, AudioError)])
    usable: Splits = {split: [] for split, utterances in splits.items() if utterances}
    for split in usable:
        for one in splits[split]:
            copy = found.get(one.path)
            if isinstance(copy, AudioError):
                left_out.append(LeftOut(one.id, split, str(one.path), copy.code))
            elif copy and one.channel is not None:  # which a copy mixes with the others
                left_out.append(LeftOut(one.id, split, str(one.path), "missing_channel"))
            elif copy:
                source = cast(Path, one.path)
                usable[split].append(replace(one, path=copy, converted_from=source))
            else:
                usable[split].append(one)
    return usable


def _check_convertible(foreign: Sequence[Path], copies: Path | None) -> None:
    """Raise ConfigError where recordings cannot be converted."""
    by_ffmpeg = [path for path in foreign if needs_ffmpeg(path)]
    if by_ffmpeg and not is_installed():
        raise ConfigError(
            f"{by_ffmpeg[0]}: is one of {len(by_ffmpeg)} recordings that PyAV decodes, which is "
            "not installed: pip install 'lrt-asr[media]'"
        )
    if copies is None:
        raise ConfigError(
            f"{foreign[0]}: is one of {len(foreign)} recordings that must be converted, and the "
            "copies need a folder: give one as OUT_DIR in place of a URL"
        )


def _convert(path: Path, flac: Path) -> Path | AudioError:
    """Write a recording as FLAC; return the copy, or why there is none."""
    try:
        to_flac(path, flac)
    except AudioError as error:
        return error
    except (OSError, sf.LibsndfileError) as error:
        raise NotWrittenError(
            f"{flac}: cannot be written ({error}): free some space or choose another folder"
        ) from error
    return flac
