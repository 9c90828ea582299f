"""Divide the utterances of a table among train, dev and test, speakers kept apart."""

import logging
import random
import re
from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from itertools import chain

from asr.data.people import BETWEEN, key_of_person, people_of
from asr.errors import DataError
from data_prep.corpus_writer import LeftOut, say_left_out
from data_prep.cuts import Utterance
from data_prep.lines import Line, Transcripts

log = logging.getLogger(__name__)

_NAMES = {"train": "train", "training": "train", "dev": "dev", "devel": "dev", "development": "dev",
          "valid": "dev", "val": "dev", "validation": "dev", "test": "test", "testing": "test",
          "eval": "test", "evaluation": "test"}  # fmt: skip
_MAYBE_BETWEEN = re.compile("[;,&/|+]")  # people in one cell, or the parts of one name
_MOST_UNNAMED = 0.5  # of the utterances, where speakers are kept apart
_SEED = 1

Pairs = Sequence[tuple[Line, Utterance]]
Splits = dict[str, list[Utterance]]


def as_the_table_says(table: Transcripts, pairs: Pairs, left_out: list[LeftOut]) -> Splits | None:
    """Return the splits of a table, and list the lines of none; None if no line names one.

    Raises DataError where some lines are of none and none is of train.
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
    """Return why a line is of no split, which a column or else its folder tells."""
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
    trained, others = (
        set(chain(*(people_of(one.speaker) for one in ones)))
        for ones in (splits["train"], (*splits["dev"], *splits["test"]))
    )
    both = trained & others
    if both:
        log.warning(
            "as the table says, speakers of train are in dev or test (%d): the CER says little "
            "about other people", len(both),
        )  # fmt: skip


def divide(utterances: Sequence[Utterance], shares: Mapping[str, float]) -> Splits:
    """Return the utterances of train, dev and test: by speaker, else by recording, else each.

    Some of no named speaker are in train where most have one.
    """
    n_splits = 1 + sum(share > 0 for share in shares.values())
    groups_of = _kept_together({one.speaker for one in utterances} - {""}, n_splits)
    speakers, paths = set(groups_of.values()), {one.path for one in utterances}
    unnamed = [one for one in utterances if not one.speaker]
    by_speaker = len(speakers) >= n_splits and len(unnamed) <= _MOST_UNNAMED * len(utterances)
    if by_speaker and unnamed:
        log.warning("%d lines name no speaker: they are in train, and may be of speakers of dev "
                    "and test", len(unnamed))  # fmt: skip
        utterances = [one for one in utterances if one.speaker]
    if not by_speaker and n_splits > 1:
        log.warning(
            "fewer than %d speakers are named, or not one for each recording, so dev and "
            "test may hold the speakers of train: their CER says nothing about other people",
            n_splits,
        )
    groups: dict[str, list[Utterance]] = defaultdict(list)
    most = 2 * max(shares.values()) * len(utterances)
    sizes = Counter(str(one.path) for one in utterances).values()
    # Few long recordings are divided: they would leave too little for train.
    by_path = sum(n for n in sizes if n <= most) >= sum(shares.values()) * len(utterances)
    for one in utterances:
        alone = str(one.path) if len(paths) >= n_splits and by_path else one.id
        groups[groups_of[one.speaker] if by_speaker else alone].append(one)
    order = sorted(groups)
    random.Random(_SEED).shuffle(order)
    largest = max(map(len, groups.values()))
    order.sort(key=lambda name: (len(groups[name]) > most, len(groups[name]) == largest))
    splits: Splits = {"train": unnamed if by_speaker else [], "dev": [], "test": []}
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


def _kept_together(speakers: Collection[str], n_splits: int) -> dict[str, str]:
    """Return a name for each speaker, the same for those who are kept together.

    Where that makes fewer than `n_splits`, those who are named beside most, such as one who asks
    all others, join none.
    """
    cells = [parts for name in speakers if len(parts := people_of(name, _MAYBE_BETWEEN)) > 1]
    by_cells = [one for one, n in Counter(chain(*cells)).most_common() if n > 1]
    for n_without in range(len(by_cells) + 1):
        groups = _groups(speakers, frozenset(by_cells[:n_without]))
        if len(set(groups.values())) >= n_splits:
            if n_without:
                log.warning("people who are named beside others may be in several splits: %s",
                            ", ".join(by_cells[:n_without]))  # fmt: skip
            return groups
    return _groups(speakers)


def _groups(speakers: Collection[str], without: frozenset[str] = frozenset()) -> dict[str, str]:
    """Return a name for each speaker, the same for cells that name a person in common.

    Between commas and slashes may be the parts of one name, which count where a cell has one of
    them alone, or all of them. The people `without` join no cells but those of theirs alone.
    """
    alone = {key_of_person(name): name for name in speakers}
    group = {name: name for name in speakers}

    def first_of(name: str) -> str:
        while group[name] != name:
            group[name] = name = group[group[name]]
        return name

    named = dict[object, str]()
    for name in sorted(speakers):
        parts, people = (people_of(name, each) for each in (_MAYBE_BETWEEN, BETWEEN))
        parts, people = parts - without or parts, people - without or people
        together = {alone[part] for part in parts if part in alone}
        together |= {named.setdefault(key, name) for key in (parts, *people) if key}
        for other in together:
            group[first_of(other)] = first_of(name)
    return {name: first_of(name) for name in speakers}


def with_dev(splits: Splits, share: float) -> Splits:
    """Return splits in which a share of train is dev, if a table names none for it."""
    if splits["dev"] or not splits["train"] or not share:
        return splits
    log.warning("no utterance is of dev: %.0f %% of train become dev", 100 * share)
    divided = divide(splits["train"], {"dev": share})
    return splits | {"train": divided["train"], "dev": divided["dev"]}
