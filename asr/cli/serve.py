"""TODO: serve."""

from typing import Annotated

import typer

from asr.cli.options import Device, Int8, app


@app.command()
def serve(
    bundles: Annotated[
        list[str],
        typer.Argument(metavar="BUNDLE...", help="Bundles' folders, or NAME=FOLDER."),
    ],
    host: str = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535)] = 8000,
    device: Device = "auto",
    int8: Int8 = False,
) -> None:
    """An HTTP service in OpenAI's shape; its limits and keys are environment variables, ASR_…"""
    from serve.server import run
    from serve.settings import Settings

    run(Settings.read(bundles=bundles, device=device, int8=int8), host, port)
