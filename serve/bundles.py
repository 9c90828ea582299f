"""Find the bundles to serve, and copy those given by URL to this machine."""

from collections.abc import Iterable
from contextlib import ExitStack

from asr.runtime.storage import is_url
from asr.transcription.remote_bundle import local_bundle
from serve.settings import named


def local_bundles(bundles: Iterable[str], copies: ExitStack) -> list[str]:
    """Return the bundles as NAME=FOLDER or FOLDER; copy those given by URL to this machine.

    The copies exist until `copies` is closed. Raises BundleError where a URL cannot be read.
    """
    return [_local(bundle, copies) for bundle in bundles]


def _local(bundle: str, copies: ExitStack) -> str:
    name, place = named(bundle)
    if not is_url(place):
        return bundle
    copy = str(copies.enter_context(local_bundle(place)))
    return f"{name}={copy}" if name else copy
