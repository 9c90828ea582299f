"""`asr serve`."""

from contextlib import ExitStack
from typing import Annotated

import typer

from asr.cli.options import Device, Int8, app


@app.command()
def serve(
    bundles: Annotated[
        list[str],
        typer.Argument(metavar="BUNDLE...", help="Folders or URLs of bundles, or NAME=FOLDER."),
    ],
    host: str = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535)] = 8000,
    device: Device = "auto",
    int8: Int8 = False,
) -> None:
    """Serve models over HTTP (OpenAI's API, a web page); limits and keys are in ASR_… variables."""
    from serve.server import run
    from serve.settings import Settings

    with ExitStack() as copies:
        local = [_local(bundle, copies) for bundle in bundles]
        run(Settings.read(bundles=local, device=device, int8=int8), host, port)


def _local(bundle: str, copies: ExitStack) -> str:
    """Return a bundle as NAME=FOLDER or FOLDER; one by URL is copied for as long as it is served.

    Raises BundleError where that cannot be read.
    """
    from asr.runtime.storage import is_url
    from asr.transcription.remote_bundle import local_bundle

    name, equals, place = ("", "", bundle) if is_url(bundle) else bundle.partition("=")
    if not is_url(place):
        return bundle
    return f"{name}{equals}{copies.enter_context(local_bundle(place))}"
