"""The light S3 of the benchmarks keeps the promises that a shared job needs."""

from collections.abc import Iterator

import pytest

from asr.runtime import storage
from asr.runtime.stores import Folder, version
from benchmarks.local_s3 import light_server, use_s3


@pytest.fixture(scope="module")
def folder() -> Iterator[Folder]:
    s3fs = pytest.importorskip("s3fs")
    with pytest.MonkeyPatch.context() as patch, light_server(recordings=1500) as port:
        for name in ("ACCESS_KEY_ID", "SECRET_ACCESS_KEY", "DEFAULT_REGION", "ENDPOINT_URL"):
            patch.setenv(f"AWS_{name}", "")  # as before after the tests
        use_s3(port)
        s3fs.S3FileSystem.clear_instance_cache()  # of the server of another module
        storage._file_system.cache_clear()
        yield Folder("s3://corpus/job")


def test_an_object_is_created_once_and_listed_with_versions(folder: Folder) -> None:
    assert folder.create("ab/lease.1", b"mine")
    assert not folder.create("ab/lease.1", b"theirs")
    assert folder.read("ab/lease.1") == b"mine"
    before = version(folder.list("ab")["lease.1"])
    folder.replace("ab/lease.1", b"a sign of life")
    assert version(folder.list("ab")["lease.1"]) != before
    assert folder.create("ab/deeper/x", b"") and folder.create("abc", b"")
    assert set(folder.list("ab")) == {"lease.1"}
    assert folder.folders("ab") == ["deeper"]
    assert folder.exists("abc") and not folder.exists("none")


def test_all_pages_of_a_listing_are_found(folder: Folder) -> None:
    found = folder.system.find("corpus")
    assert len([name for name in found if name.endswith(".wav")]) == 1500
