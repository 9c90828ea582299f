"""`asr serve`."""

from contextlib import ExitStack
from typing import Annotated

import typer

from asr.cli.options import Int8, app


@app.command()
def serve(
    bundles: Annotated[
        list[str],
        typer.Argument(metavar="BUNDLE...", help="Folders or URLs of bundles, or NAME=FOLDER."),
    ],
    host: str = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535)] = 8000,
    device: Annotated[
        str | None, typer.Option(help="auto, cpu, cuda or cuda:N; default: ASR_DEVICE, else auto.")
    ] = None,
    int8: Int8 = False,
) -> None:
    """Serve models over HTTP (OpenAI's API, a web page); limits and keys are in ASR_… variables."""
    from serve.bundles import local_bundles
    from serve.server import run
    from serve.settings import Settings

    with ExitStack() as copies:
        local = local_bundles(bundles, copies)
        given = {"device": device, "int8": int8 or None}  # ASR_DEVICE and ASR_INT8 for the others
        given = {name: value for name, value in given.items() if value is not None}
        run(Settings.read(bundles=local, **given), host, port)
