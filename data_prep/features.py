"""Spectrograms of a prepared corpus, computed once and stored beside its cuts.

A pack of features is whole or not there, and its name follows from the cuts in it, the files that
they were made of and the features' configuration; so a run that was cut off goes on where it was.
"""

import gzip
import hashlib
import json
import os
import signal
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import nullcontext
from functools import partial
from multiprocessing import get_context
from pathlib import Path

import torch
from lhotse import MonoCut
from rich.console import Console
from rich.progress import track

from asr.audio.features import FeaturesConfig
from asr.data.feature_store import attach_features, feature_key, frames_in, write_pack
from asr.data.manifest import read_wave
from asr.errors import AsrError, AudioError
from asr.runtime.files import write_atomically
from asr.runtime.processes import end_with_parent
from data_prep.corpus_writer import gzip_text

_PACK = 100  # utterances

# A pack's path, and its cuts as lines of a manifest.
_Job = tuple[Path, Sequence[str]]


def store(
    out: Path, splits: Iterable[str], config: FeaturesConfig, *, jobs: int | None = None
) -> None:
    """Compute the features of `<out>/<split>.jsonl.gz` into `<out>/features`; the cuts know them.

    What an earlier run finished is kept, what no cut uses any more goes. An utterance that cannot
    be decoded stays without, to be reported in training. `jobs` is how many processes work.
    Raises AsrError where `out` cannot be written or a process dies.
    """
    folder = out / "features"
    folder.mkdir(exist_ok=True)
    manifests = [out / f"{split}.jsonl.gz" for split in splits]
    work = {manifest: _work(manifest, folder, config) for manifest in manifests}
    every = [job for part in work.values() for job in part]
    _compute_all([job for job in every if not job[0].exists()], config, jobs)
    for manifest, part in work.items():
        _rewrite(manifest, part, config)
    for path in set(folder.iterdir()) - {path for path, _ in every}:
        path.unlink()


def _work(manifest: Path, folder: Path, config: FeaturesConfig) -> list[_Job]:
    with gzip.open(manifest, "rt", encoding="utf-8") as file:
        lines = file.readlines()
    parts = [lines[first : first + _PACK] for first in range(0, len(lines), _PACK)]
    return [(folder / f"{_digest(part, config)}.safetensors", part) for part in parts]


def _digest(lines: Sequence[str], config: FeaturesConfig) -> str:
    digest = hashlib.sha256(feature_key(config).encode())
    for line in lines:
        file = Path(json.loads(line)["recording"]["sources"][0]["source"]).stat()
        digest.update(f"{line}{file.st_size} {file.st_mtime_ns}\n".encode())
    return digest.hexdigest()[:20]


def _compute_all(todo: Sequence[_Job], config: FeaturesConfig, jobs: int | None) -> None:
    jobs = min(jobs or os.cpu_count() or 1, len(todo))
    compute, console = partial(_compute, config), Console(stderr=True)
    # Spawned, since a fork would take along the threads that torch may have in this process.
    pool = ProcessPoolExecutor(jobs, get_context("spawn"), _start_worker) if jobs > 1 else None
    try:
        with pool or nullcontext():
            done = pool.map(compute, todo) if pool else map(compute, todo)
            bar = track(done, "computing features", len(todo), console=console, disable=not todo)
            for _ in bar:
                pass
    except BrokenProcessPool as error:
        raise AsrError(
            "one of the processes died (out of memory?): start again with fewer --jobs, features "
            "that are stored are not computed twice"
        ) from error


def _start_worker() -> None:
    """One thread a process; Ctrl-C is the parent's, and without a parent there is nothing to do."""
    torch.set_num_threads(1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    end_with_parent()


def _compute(config: FeaturesConfig, job: _Job) -> None:
    path, lines = job
    extractor, feats = config.build(), {}
    for line in lines:
        cut = MonoCut.from_dict(json.loads(line))
        try:
            feats[cut.id] = extractor.log_power(read_wave(cut, config.sample_rate))
        except AudioError:
            continue
    write_pack(path, feats)


def _rewrite(manifest: Path, work: Sequence[_Job], config: FeaturesConfig) -> None:
    def write(partial_path: Path) -> None:
        with gzip_text(partial_path) as file:
            for path, lines in work:
                frames = frames_in(path)
                for line in lines:
                    cut = MonoCut.from_dict(json.loads(line))
                    if cut.id in frames:
                        attach_features(cut, path, frames[cut.id], config)
                    file.write(json.dumps(cut.to_dict(), ensure_ascii=False) + "\n")

    write_atomically(manifest, write)
