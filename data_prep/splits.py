"""Divide the utterances of a table among train, dev and test, speakers kept apart."""

import logging
import random
import re
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence, Set
from itertools import chain

from asr.data.people import in_both, parts_of, people_of
from asr.errors import DataError
from data_prep.corpus_writer import LeftOut, say_left_out
from data_prep.cuts import Utterance
from data_prep.lines import Line, Transcripts

log = logging.getLogger(__name__)

_NAMES = {"train": "train", "training": "train", "dev": "dev", "devel": "dev", "development": "dev",
          "valid": "dev", "val": "dev", "validation": "dev", "test": "test", "testing": "test",
          "eval": "test", "evaluation": "test"}  # fmt: skip
_MOST_UNNAMED = 0.5  # share of utterances without a speaker, where speakers are kept apart
_LEAST_HELD = 0.25  # share of what dev and test should have, where people join cells
_MOST_SHOWN, _SEED = 5, 1

Pairs = Sequence[tuple[Line, Utterance]]
Splits = dict[str, list[Utterance]]


def as_the_table_says(table: Transcripts, pairs: Pairs, left_out: list[LeftOut]) -> Splits | None:
    """Return the splits that a table names, or None if no line names one.

    Lines of no split are added to `left_out`. Raises DataError where there are some and no line is
    of train.
    """
    named = [line for line, _ in pairs if line.split]
    if not any(split_of(line.split) for line in named):
        if named:
            log.warning("the table's splits are not used: %s is none of %s",
                        named[0].split, ", ".join(_NAMES))  # fmt: skip
        return None
    splits: Splits = {"train": [], "dev": [], "test": []}
    others, said = list[LeftOut](), list[str]()
    for line, one in pairs:
        if split := split_of(line.split):
            splits[split].append(one)
            continue
        said.append(f"{table.place(line.number)}: {_what_of(line, 'split' in table.columns)}")
        reason = "unknown_split" if line.split else "no_split"
        others.append(LeftOut(one.id, "", str(one.path), reason))
    if others and not splits["train"]:
        advice = "no line is of train: write train into such cells"
        if "split" not in table.columns:
            advice = "no text of train can be used: correct those of train"
        raise DataError(f"{said[0]}, and {advice}")
    left_out.extend(others)
    say_left_out(said)
    _say_shared_speakers(splits)
    return splits


def _what_of(line: Line, has_column: bool) -> str:
    """Return why a line is of no split: what its cell, or without a column its folder, has."""
    where = "in the column of splits" if has_column else "as its folder"
    if line.split:
        return f"{line.split} {where} is none of {', '.join(_NAMES)}"
    return (
        "its cell of the column of splits is empty"
        if has_column
        else "it is in no folder of a split"
    )


def split_of(name: str | None) -> str | None:
    """Return the split of a name; `train-clean-100` is one of train, `train_dev` of none."""
    parts = re.split(r"[-_. ]", (name or "").lower())
    found = {_NAMES[part] for part in parts if part in _NAMES}
    return found.pop() if len(found) == 1 and parts[0] in _NAMES else None


def _say_shared_speakers(splits: Splits) -> None:
    held = (one.speaker for one in (*splits["dev"], *splits["test"]))
    both = in_both((one.speaker for one in splits["train"]), held)
    if both:
        log.warning(
            "as the table says, speakers of train are in dev or test (%d): the CER says little "
            "about other people", len(both),
        )  # fmt: skip


def divide(utterances: Sequence[Utterance], shares: Mapping[str, float]) -> Splits:
    """Return utterances divided into train, dev and test: by speaker, else recording, else each.

    `shares` has the shares of dev and test. Where at least half of the utterances have a speaker,
    those without one are in train.
    """
    n_splits = 1 + sum(share > 0 for share in shares.values())
    unnamed = sum(not one.speaker for one in utterances)
    groups_of = dict[str, str]()
    if unnamed <= _MOST_UNNAMED * len(utterances):
        cells = Counter(one.speaker for one in utterances if one.speaker)
        groups_of = _kept_together(cells, n_splits, sum(shares.values()))
    by_speaker, paths = bool(groups_of), {one.path for one in utterances}
    if by_speaker and unnamed:
        log.warning("%d lines name no speaker: they are in train, and may be of speakers of dev "
                    "and test", unnamed)  # fmt: skip
    if not by_speaker and n_splits > 1:
        log.warning(
            "fewer than %d speakers are named, or not one for each recording, so dev and "
            "test may hold the speakers of train: their CER says nothing about other people",
            n_splits,
        )
    train = [one for one in utterances if by_speaker and not groups_of.get(one.speaker)]
    utterances = [one for one in utterances if not by_speaker or groups_of.get(one.speaker)]
    groups: dict[str, list[Utterance]] = defaultdict(list)
    most = 2 * max(shares.values()) * len(utterances)
    sizes = Counter(str(one.path) for one in utterances).values()
    # A few long recordings are divided: whole ones would leave too little for train.
    by_path = sum(n for n in sizes if n <= most) >= sum(shares.values()) * len(utterances)
    for one in utterances:
        alone = str(one.path) if len(paths) >= n_splits and by_path else one.id
        groups[groups_of[one.speaker] if by_speaker else alone].append(one)
    order = sorted(groups)
    random.Random(_SEED).shuffle(order)
    largest = max(map(len, groups.values()))
    order.sort(key=lambda name: (len(groups[name]) > most, len(groups[name]) == largest))
    splits: Splits = {"train": train, "dev": [], "test": []}
    for name in order[:-1]:
        fill = {s: len(splits[s]) / (a * len(utterances)) for s, a in shares.items() if a > 0}
        emptiest = min(fill, key=lambda split: fill[split], default="train")
        has_room = fill.get(emptiest, 1.0) < 1 and (len(groups[name]) <= most or not fill[emptiest])
        splits[emptiest if has_room else "train"] += groups[name]
    splits["train"] += groups[order[-1]]
    for split, share in shares.items():
        held = len(splits[split]) / len(utterances)
        if held > 2 * share > 0:
            log.warning(
                "%s has %.0f %% of the utterances in place of %.0f %%, for a %s is not divided: "
                "a column `split` can leave more for train",
                split, 100 * held, 100 * share,
                "speaker" if by_speaker else "recording",
            )  # fmt: skip
    return splits


def _kept_together(cells: Mapping[str, int], n_splits: int, shares: float) -> dict[str, str]:
    """Return a group for each cell of speakers, the same for those that name a person in common.

    `cells` maps cells to their numbers of utterances. Where dev and test would have too little of
    their `shares`, the people named in most cells, such as an interviewer, do not join cells; a
    cell of such people alone has the group "". Where there are fewer groups than splits, the result
    is empty.
    """
    known = frozenset(chain(*map(people_of, cells)))
    people = {cell: people_of(cell, known) for cell in cells}
    beside = Counter(chain(*(named for named in people.values() if len(named) > 1)))
    often = sorted((one for one, n in beside.items() if n > 1), key=lambda one: (-beside[one], one))
    for n_without in (n for n in range(len(often) + 1) if n <= 8 or n & (n - 1) == 0):
        groups = _groups(people, frozenset(often[:n_without]))
        sizes = Counter[str]()
        for cell, group in groups.items():
            sizes[group] += cells[cell]
        held = sum(cells.values()) - sizes.pop("", 0) - max(sizes.values(), default=0)
        if len(sizes) >= n_splits and held >= _LEAST_HELD * shares * sum(cells.values()):
            if n_without:
                shown = ", ".join(often[: min(n_without, _MOST_SHOWN)])
                log.warning("%d people who are named beside others may be in several splits: %s",
                            n_without, shown)  # fmt: skip
            return groups
    groups = _groups(people, frozenset())
    return groups if len(set(groups.values())) >= n_splits else {}


def _groups(people: Mapping[str, Set[str]], without: Set[str]) -> dict[str, str]:
    """Return a name for each cell, the same for cells that name a person in common.

    The people in `without` join no cells; the name of a cell of such people alone is "".
    """
    group = {cell: cell for cell in people}

    def first_of(cell: str) -> str:
        while group[cell] != cell:
            group[cell] = cell = group[group[cell]]
        return cell

    named = dict[object, str]()
    for cell in sorted(people):
        for key in (parts_of(cell), *(people[cell] - without)):
            group[first_of(named.setdefault(key, cell))] = first_of(cell)
    return {cell: first_of(cell) if people[cell] - without else "" for cell in people}


def with_dev(splits: Splits, share: float) -> Splits:
    """Return splits in which a share of train becomes dev, if a table names no dev."""
    if splits["dev"] or not splits["train"] or not share:
        return splits
    log.warning("no utterance is of dev: %.0f %% of train become dev", 100 * share)
    divided = divide(splits["train"], {"dev": share})
    return splits | {"train": divided["train"], "dev": divided["dev"]}
