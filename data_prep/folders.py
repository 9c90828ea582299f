"""What the folders of texts tell of them: the split, and the speaker."""

import logging
from collections.abc import Iterable
from pathlib import PurePath

from data_prep.splits import split_of

log = logging.getLogger(__name__)


def read_folders(
    folders: Iterable[PurePath], is_speaker_known: bool = False
) -> dict[PurePath, dict[str, str]]:
    """Return the cells `split` and `speaker` for the texts in each of these folders.

    - The split is the outer folder, or the next one where all are in one folder. It counts where
      some folders are of train and others of dev or test, or all are of train. Texts in folders of
      no split are to be left out then.
    - The speaker is the folder below the split, or the outer folder where there are no splits. It
      counts where there are several such folders and no text is outside of them, unless speakers
      are known.
    - Neither counts where a folder is of train, or all are of splits, but the first rule fails.
    """
    parts = {folder: folder.parts for folder in folders}
    while _is_of_all(list(parts.values())):
        parts = {folder: names[1:] for folder, names in parts.items()}
    splits = {folder: split_of(names[0]) if names else None for folder, names in parts.items()}
    kinds = set(splits.values())
    has_splits = "train" in kinds and (None not in kinds or len(kinds) > 2)
    inner = {
        folder: names[1:] if has_splits else folder.parts
        for folder, names in parts.items()
        if splits[folder] or not has_splits
    }
    speakers = {names[0] for names in inner.values() if names}
    is_split = not has_splits and ("train" in kinds or None not in kinds)
    has_speakers = len(speakers) > 1 and all(inner.values()) and not is_split
    if has_speakers and not is_speaker_known:
        log.warning("the names of %d folders are taken for those of speakers, such as %s",
                    len(speakers), min(speakers))  # fmt: skip
    else:
        inner = {}
    return {
        folder: {
            "split": names[0] if has_splits and names else "",
            "speaker": inner[folder][0] if folder in inner else "",
        }
        for folder, names in parts.items()
    }


def _is_of_all(parts: list[tuple[str, ...]]) -> bool:
    """Tell whether all are in one outer folder, and its name is that of no split."""
    outer = {names[:1] for names in parts}
    return len(outer) == 1 and outer != {()} and not split_of(parts[0][0])
