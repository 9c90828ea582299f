"""A machine's part of `asr transcribe ... --out URL`, which machines share."""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from asr.cli.extras import require_ray
from asr.cli.options import note, progress

if TYPE_CHECKING:
    from asr.transcription.shared import Crew, Work

_MOST_FAILURES = 20  # that are shown; `asr jobs status` counts all


def transcribe_shared(
    arguments: list[str], out: str, format: str, device: str, int8: bool,
    changes: dict[str, object], jobs: int | None, engine: str | None, cores: int,
) -> None:  # fmt: skip
    """Do this machine's part of a job, and report all of it when all of it is done."""
    from asr.runtime.storage import is_url
    from asr.transcription import shared
    from asr.transcription.remote_bundle import local_bundle, model_digest
    from asr.transcription.shares import plan

    if engine:  # paths are read by other machines too
        arguments = [a if is_url(a) or a == "-" else str(Path(a).absolute()) for a in arguments]
    if format != "json":
        changes["n_best"] = 1
    with local_bundle(arguments[0]) as bundle:
        options = {**changes, "int8": int8, "model": model_digest(bundle)}
        job = plan(arguments[1:], out, format, options)
        if engine and isinstance(lm := changes.get("lm"), Path):
            changes["lm"] = lm.absolute()
        work = shared.Work(job, out, format, bundle, device, int8, changes, cores)
        crew = _crew(work, arguments[0], jobs, engine)
        with progress("transcribing", len(job.tasks)) as on_progress:
            failed = shared.transcribe_shared(work, crew, on_progress)
    for sentence in failed[:_MOST_FAILURES]:
        note(f"asr: {sentence}")
    note(f"{len(job.tasks) - len(failed)} are in {out}, {len(failed)} failed")
    raise typer.Exit(int(bool(failed)))


def _crew(work: "Work", bundle: str, jobs: int | None, engine: str | None) -> "Crew":
    """Return who works here: processes, or actors of Ray. Raises ConfigError where none can."""
    from asr.runtime.threads import choose_threads
    from asr.transcription.batch import choose_jobs
    from asr.transcription.shared import LocalCrew

    if not engine:
        jobs = jobs or choose_jobs(work.job.tasks.values(), work.device)
        threads = max(1, choose_threads().number // jobs)
        return LocalCrew(replace(work, threads=threads), jobs)
    require_ray(engine, "transcribe")
    from asr.transcription.ray_engine import RayCrew

    return RayCrew(work, bundle, engine, jobs)
