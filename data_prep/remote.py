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
    """Yield a folder; if nothing is raised, copy its files to the URL `out` at the end.

    A path `out` is the folder itself. The report is written last, after all other files are whole
    and `outdated` manifests are removed. Raises DataError where writing fails.
    """
    if isinstance(out, Path):
        yield out
        return
    system, path = file_system(out)
    with TemporaryDirectory(prefix="asr-") as temporary:
        folder = Path(temporary)
        yield folder
        files = {file.name: file for file in folder.iterdir()}

        def put(name: str) -> None:
            patiently(lambda: system.put_file(str(files[name]), f"{path}/{name}"))

        def remove(name: str) -> None:
            log.warning("%s/%s is removed: there is no such split any more", out, name)
            if patiently(lambda: system.exists(f"{path}/{name}")):
                patiently(lambda: system.rm_file(f"{path}/{name}"))

        report = f"{path}/{REPORT}"
        try:
            patiently(lambda: system.makedirs(path, exist_ok=True))
            earlier = patiently(lambda: system.cat_file(report) if system.exists(report) else b"")
            for name in sorted(set(files) - {REPORT}):
                put(name)
            for name in outdated(earlier, files):
                remove(name)
            put(REPORT)
        except OSError as error:
            reason = (error.strerror or str(error)).lower()
            raise DataError(
                f"{out}: cannot be written ({reason}): check the URL and the key"
            ) from error
