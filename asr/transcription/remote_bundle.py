"""A bundle by URL: its files, which are small beside recordings, are copied for as long as needed.

Nothing here loads a model, so that a process that only starts others stays small.
"""

import hashlib
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from asr.errors import BundleError
from asr.runtime.files import read_bytes
from asr.runtime.storage import is_url, local_copy
from asr.runtime.yaml_values import parse_yaml

_CONFIG = "config.yaml"
_FILES = (_CONFIG, "tokenizer.model", "model.safetensors")


@contextmanager
def local_bundle(given: str) -> Iterator[Path]:
    """Yield the folder of a bundle; of one by URL, a copy. Raises BundleError if there is none."""
    if not is_url(given):
        yield Path(given)
        return
    with ExitStack() as stack:
        try:
            folder = stack.enter_context(local_copy(given, _names))
        except OSError as error:
            reason = (error.strerror or str(error)).lower()
            raise BundleError(
                f"{given}: cannot be read ({reason}): check the URL and the key"
            ) from error
        for name in _FILES:
            if not (folder / name).is_file():
                raise BundleError(f"{given}: has no {name}: give what `asr train` has finished")
        yield folder


def _names(folder: Path) -> list[str]:
    """Return the names of a bundle's files; that of its language model once config.yaml is here.

    A language model outside the folder is not fetched, as it is not read in a local bundle.
    """
    if not (folder / _CONFIG).is_file():
        return list(_FILES)
    try:
        found = parse_yaml(read_bytes(folder / _CONFIG).decode("utf-8"))
        lm = Path(str(found["decoding"]["lm"]))
    except (ValueError, LookupError, TypeError):  # loading the bundle tells what is wrong
        return list(_FILES)
    is_below = found["decoding"]["lm"] and not lm.is_absolute() and ".." not in lm.parts
    return [*_FILES, str(lm)] if is_below else list(_FILES)


def model_digest(bundle: Path) -> str:
    """Return a digest of a bundle's files, wherever it lies. Raises BundleError if not whole."""
    found = hashlib.sha256()
    for name in _FILES:
        if not (bundle / name).is_file():
            raise BundleError(
                f"{bundle}: has no {name}: give a folder that `asr train` has finished"
            )
        with (bundle / name).open("rb") as file:
            found.update(hashlib.file_digest(file, "sha256").digest())
    return found.hexdigest()[:16]
