"""Where a prepared corpus is written: a folder, or a temporary one that becomes a URL."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from asr.errors import DataError
from asr.runtime.storage import file_system, patiently
from data_prep.corpus_writer import REPORT, outdated

log = logging.getLogger(__name__)


@contextmanager
def folder_for(out: Path | str) -> Iterator[Path]:
    """Yield a folder, whose files are at the URL `out` at the end if nothing was raised.

    Each is written whole, the report last; then `outdated` manifests are removed. Raises DataError
    where that fails.
    """
    if isinstance(out, Path):
        yield out
        return
    system, path = file_system(out)
    with TemporaryDirectory(prefix="asr-") as name:
        folder = Path(name)
        yield folder
        files = sorted(folder.iterdir(), key=lambda file: (file.name == REPORT, file.name))
        try:
            patiently(lambda: system.makedirs(path, exist_ok=True))
            report = f"{path}/{REPORT}"
            earlier = patiently(lambda: system.cat_file(report) if system.exists(report) else b"")
            for file in files:
                patiently(lambda file=file: system.put_file(str(file), f"{path}/{file.name}"))  # type: ignore[misc]
            for old in outdated(earlier, {file.name for file in files}):
                log.warning("%s/%s is removed: there is no such split any more", out, old)
                patiently(lambda old=old: system.rm_file(f"{path}/{old}"))  # type: ignore[misc]
        except OSError as error:
            reason = (error.strerror or str(error)).lower()
            raise DataError(
                f"{out}: cannot be written ({reason}): check the URL and the key"
            ) from error
