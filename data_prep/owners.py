"""Tell who is recorded in a file, by the lines of a table and the folders of people."""

import math
from collections import defaultdict
from collections.abc import Callable, Sequence, Set
from itertools import chain
from operator import attrgetter
from typing import NamedTuple

from asr.data.people import key_of_person, people_of
from data_prep.lines import Line
from data_prep.recordings import Recordings, Whose

# The longest time in which two people may speak at once in one recording, as a share of the time of
# the one who speaks less.
_MOST_AT_ONCE = 0.5


class _Part(NamedTuple):
    """A part of a recording in seconds, as a table gives it.

    `seconds` is inf for a part without an end, nan for the whole recording.
    """

    start: float
    seconds: float
    people: frozenset[str]


def owners(lines: Sequence[Line], files: Recordings) -> Callable[[Line], Whose | None]:
    """Return a function that tells who is in the file of a line; None where no one is named."""
    who = _people_by_cell({line.speaker for line in lines if line.speaker}, files)
    named = [(line, who[line.speaker]) for line in lines if line.speaker]
    parts = defaultdict[str, list[_Part]](list)
    everybody = defaultdict[str, frozenset[str]](frozenset)
    for line, people in named:
        everybody[line.audio] |= people
        length = (line.seconds or math.inf) if line.is_part else math.nan
        parts[line.audio].append(_Part(line.start, length, people))
    talks = {audio for audio, of in parts.items() if len(everybody[audio]) > 1 and _is_talk(of)}
    all_people = frozenset(chain(*everybody.values()))
    # If several files have one name, it is a mere number, and a person's folder makes it unique.
    is_strict = 2 * sum(files.completes(people, line.audio) for line, people in named) > len(named)

    def whose(line: Line) -> Whose | None:
        if not line.speaker:
            return None
        people = who[line.speaker]
        is_talk = line.audio in talks  # a talk may be in the folder of one of its people
        is_shared = everybody[line.audio] > people and not line.is_part
        return Whose(people, all_people, is_shared, is_strict and not is_talk)

    return whose


def _people_by_cell(cells: Set[str], files: Recordings) -> dict[str, frozenset[str]]:
    """Return the people of each cell of speakers; a cell that is the name of a folder is one."""
    known = frozenset(chain(*map(people_of, cells)))
    keys = {cell: key_of_person(cell) for cell in cells}
    return {
        cell: frozenset((key,)) if key in files.folders else people_of(cell, known)
        for cell, key in keys.items()
    }


def _is_talk(parts: Sequence[_Part]) -> bool:
    """Tell whether parts may be of one recording: no two people mostly speak at once."""
    if any(math.isnan(part.seconds) for part in parts):
        return False
    in_order = sorted(parts, key=attrgetter("start"))
    times = defaultdict[frozenset[str], float](float)
    at_once = defaultdict[frozenset[frozenset[str]], float](float)
    for part in in_order:
        times[part.people] += part.seconds
    for i, one in enumerate(in_order):
        for later in in_order[i + 1 :]:
            if later.start >= one.start + one.seconds:
                break
            if one.people.isdisjoint(later.people):
                pair = frozenset((one.people, later.people))
                at_once[pair] += min(one.start + one.seconds - later.start, later.seconds)
                if at_once[pair] > _MOST_AT_ONCE * min(times[people] for people in pair):
                    return False
    return True
