"""What the folders of texts tell of them: the split, and the speaker."""

import logging
from collections.abc import Iterable
from pathlib import PurePath

from data_prep.splits import split_of

log = logging.getLogger(__name__)


def read_folders(folders: Iterable[PurePath]) -> dict[PurePath, dict[str, str]]:
    """Return the cells `split` and `speaker` of texts in each of these folders.

    The first folder is the split where all have names of splits, one of them train; the next, or
    else the first, is the speaker where there are several, and no text outside of them.
    """
    parts = {folder: folder.parts for folder in folders}
    splits = {split_of(one[0]) if one else None for one in parts.values()}
    has_splits = "train" in splits and None not in splits
    inner = {folder: one[has_splits:] for folder, one in parts.items()}
    speakers = {one[0] for one in inner.values() if one}
    is_split = bool(splits) and None not in splits and not has_splits
    has_speakers = len(speakers) > 1 and all(inner.values()) and not is_split
    if has_speakers:
        log.warning("the names of %d folders are taken for those of speakers, such as %s",
                    len(speakers), min(speakers))  # fmt: skip
    return {
        folder: {
            "split": parts[folder][0] if has_splits else "",
            "speaker": inner[folder][0] if has_speakers else "",
        }
        for folder in parts
    }
