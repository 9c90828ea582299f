"""`asr jobs`: transcription by many machines, seen from any of them."""

import json
from dataclasses import asdict
from typing import Annotated

import typer

from asr.cli.options import Format, app, show
from asr.errors import ConfigError

jobs_app = typer.Typer(help="Look at jobs that many machines do together.", no_args_is_help=True)
app.add_typer(jobs_app, name="jobs")


@jobs_app.callback()
def jobs() -> None:
    """Look at jobs that many machines do together (`asr transcribe --out URL`)."""


@jobs_app.command()
def status(
    url: Annotated[str, typer.Argument(metavar="URL", help="That of `asr transcribe --out`.")],
    format: Format = "table",
) -> None:
    """Tell what is done, running and failed, hours of audio per hour, and the end expected."""
    from asr.runtime.storage import is_url
    from asr.transcription.job_status import read_status

    if not is_url(url):
        raise ConfigError(f"{url}: not a URL: give s3://…, or file:// and an absolute path")
    for job in read_status(url):
        if format == "json":
            show(json.dumps(asdict(job)))
            continue
        show(
            f"{job.name}: {job.done} of {job.shares} shares done, {job.running} running, "
            f"{job.silent} silent; {job.failed} of {job.recordings} recordings failed"
        )
        if job.speed and job.hours_left is not None:
            when = f"about {job.hours_left:.1f} h left" if job.done < job.shares else "all is done"
            show(f"  {job.hours_done:.2f} h of audio, {job.speed:.1f} h per hour; {when}")
