"""Recordings without text as a corpus: a model transcribes them, and what it is sure of is kept.

The decodings are files below the corpus. So a killed job continues where it was, and another run
with other limits takes seconds.
"""

import os
import re
import shutil
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import cached_property
from hashlib import sha256
from itertools import chain
from pathlib import Path

from lhotse import CutSet
from lhotse.cut import Cut

from asr.bundle import WEIGHTS, load_bundle_config
from asr.data.cuts import origins, recordings_of
from asr.decoding.options import DecodingOptions
from asr.errors import AudioError, ConfigError, DataError
from asr.evaluation.agreement import DevGuesses, Expected, Guess, Limits, View, digest, views
from asr.runtime.files import LOCK, PARTIAL, read_json, write_text
from asr.runtime.storage import is_url
from asr.runtime.tensors import read_metadata
from asr.schema import FrozenModel
from asr.transcription.batch import transcribe_all
from asr.transcription.jobs import Task, find_tasks
from asr.transcription.transcript import Transcript
from data_prep.convert import copy_name, needs_conversion, to_flac
from data_prep.corpus_writer import LeftOut, Report, write_corpus
from data_prep.cuts import Utterance
from data_prep.decodings import begin, is_done, read

SPLIT = "train"
_SOURCE, _GUESSES, _EXPECTED = "source.json", "dev_texts.json", "expected.json"
_DECODED, _CONVERTED = "decoded", "audio"
_NOT_IN_ID = r"[\s/]"


class Source(FrozenModel):
    """What made the decodings in a folder: a bundle, its weights and its decoding options.

    `lm` is the digest of the language model; `decoding` has only its name.
    """

    bundle: str
    weights: dict[str, str]
    decoding: DecodingOptions
    lm: str | None = None


class Labels:
    """A folder with the decodings of recordings, and with the corpus that follows from them.

    After `decode`, `failed` has the recordings that cannot be read. `knows_noise` tells whether the
    model was trained with noise without text.
    """

    def __init__(
        self,
        bundle: Path,
        recordings: list[str],
        out: Path,
        dev: CutSet | None = None,
        others: Iterable[CutSet] = (),
    ) -> None:
        """Begin or continue in the folder `out`; recordings of `dev` and `others` are left out.

        Raises ConfigError where the folder holds something else, DataError where no recording is
        left, BundleError and DataError as reading the bundle and finding the recordings do.
        """
        self.bundle, self.out, self.dev = bundle, out, dev
        self._with_text = set(chain.from_iterable(map(_files, others)))
        self.failed: dict[Path, AudioError] = {}
        if url := next(filter(is_url, recordings), None):
            raise ConfigError(f"{url}: a training reads recordings often: give files on a disk")
        if "-" in recordings:
            raise ConfigError("- is read once, and a training reads recordings often: give files")
        config = load_bundle_config(bundle)
        self.views = views(config)
        pauses = config.augment and config.augment.pauses
        self.knows_noise = bool(pauses and pauses.noise)
        found = [find_tasks(recordings, self._folder(view), "json") for view in self.views]
        own = out.resolve()  # may be below a folder of recordings, and holds copies of them
        pairs = zip(*found, strict=True)
        self.tasks = [p for p in pairs if own not in p[0].path.resolve().parents]
        names = Counter(self._id(first) for first, _ in self.tasks)
        self._alike = {name for name, n in names.items() if n > 1}  # a/x.wav and a_x.wav
        if all(self._unusable(first) for first, _ in self.tasks):
            raise DataError(
                f"{', '.join(recordings)}: all {len(self.tasks)} recordings are in dev or have a "
                "text already: give recordings without text"
            )
        lm = config.decoding.lm
        source = Source(
            bundle=str(bundle.resolve()),
            weights=read_metadata(bundle / WEIGHTS),
            decoding=config.decoding.model_copy(update={"lm": Path(lm.name) if lm else None}),
            lm=_digest(lm) if lm else None,
        )
        self._begin(source)

    def _folder(self, view: View) -> Path:
        return self.out / _DECODED / view.name

    def _begin(self, source: Source) -> None:
        """Store what makes the decodings. Raises ConfigError if the folder has another source."""
        path = self.out / _SOURCE
        before = read_json(path, Source, "what `asr pseudo-label` wrote: give a new folder")
        others = {p.name for p in self.out.iterdir()} - {LOCK} if self.out.is_dir() else set()
        if before is None and others:
            raise ConfigError(
                f"{self.out}: holds other files: give a new folder for the labels, last of all"
            )
        if before and before.model_copy(update={"bundle": source.bundle}) != source:
            raise ConfigError(
                f"{self.out}: its decodings are by {before.bundle} with other weights, another "
                "language model or other decoding options: give a new folder for this model's"
            )
        if not before:
            write_text(path, source.model_dump_json(indent=2) + "\n")

    @cached_property
    def dev_files(self) -> set[Path]:
        """Return the recordings of dev: the model is compared on them, so they may not train it.

        Raises ConfigError where they are inside archives.
        """
        recordings = chain.from_iterable(map(recordings_of, self.dev or ()))
        if any(source.type != "file" for each in recordings for source in each.sources):
            raise ConfigError(
                "--dev: its recordings are inside archives, so it is not known whether they are "
                "among those to label: give the manifest that the archives were made of"
            )
        return _files(self.dev or ())

    def todo(self, view: View) -> list[Task]:
        """Return the recordings that lack a decoding of this view, without unusable ones."""
        tasks = [pair[self.views.index(view)] for pair in self.tasks]
        return [task for task in tasks if not (is_done(task) or self._unusable(task))]

    def _unusable(self, task: Task) -> str | None:
        """Return the reason why a recording is not to be decoded, or None."""
        if error := self.failed.get(task.path):
            return error.code
        path = task.path.resolve()
        if path in self.dev_files:
            return "in_dev"
        return "has_text" if path in self._with_text else None

    def decode(
        self, view: View, device: str, jobs: int, on_progress: Callable[[float], object]
    ) -> Iterator[AudioError]:
        """Decode what is left to do; yield the errors of recordings that cannot be read."""
        todo = self.todo(view)
        if not todo:
            return
        for task in todo:
            begin(task)
        changes, speed = view.changes, view.speed
        for task, found in transcribe_all(
            todo, self.bundle, device, False, changes, jobs, on_progress, speed
        ):
            if isinstance(found, AudioError):
                self.failed[task.path] = found
                yield found

    def write(self, limits: Limits) -> tuple[Report, float]:
        """Write what is within the limits as a corpus; return its report, and the hours of all."""
        for left in self.out.glob(f"{PARTIAL}*"):  # by a killed run
            shutil.rmtree(left)
        kept: list[Utterance] = []
        left_out: list[LeftOut] = []
        seconds = 0.0
        for first, second in self.tasks:
            whole, reason = self._whole(first), self._unusable(first)
            parts: list[tuple[Utterance, Guess]] = []
            if not reason:
                one, other = read(first), read(second)
                seconds += one.duration
                parts = _parts(whole, one, other)
                reason = None if parts else "changed"
            if reason:
                left_out.append(LeftOut(whole.id, SPLIT, str(whole.path), reason))
            labels = []
            for part, guess in parts:
                if fault := guess.fault(limits):
                    left_out.append(LeftOut(part.id, SPLIT, str(part.path), fault))
                else:
                    labels.append(part)
            kept += self._playable(whole, labels, left_out)
        report = write_corpus({SPLIT: kept}, self.out, corpus=self.out.name, left_out=left_out)
        return report, seconds / 3600

    def read_guesses(self, dev: CutSet) -> DevGuesses | None:
        """Return what an earlier call has decoded of the same dev, or None."""
        found = read_json(
            self.out / _GUESSES, DevGuesses, "what `asr pseudo-label` wrote: remove it"
        )
        return found if found and found.dev == digest(dev) else None

    def write_guesses(self, guesses: DevGuesses) -> None:
        """Keep what was decoded of dev for calls with other limits."""
        write_text(self.out / _GUESSES, guesses.model_dump_json() + "\n")

    def write_expected(self, expected: Expected) -> None:
        """Write what was found on dev beside the corpus."""
        write_text(self.out / _EXPECTED, expected.model_dump_json(indent=2) + "\n")

    def _whole(self, task: Task) -> Utterance:
        """Return a whole recording as an utterance without a text; its id is made from its path."""
        id = self._id(task)
        if id in self._alike:
            id += f"-{sha256(os.fsencode(self._name(task))).hexdigest()[:8]}"
        return Utterance(id, task.path, "", "")

    def _id(self, task: Task) -> str:
        return f"pseudo-{re.sub(_NOT_IN_ID, '_', self._name(task))}"

    def _name(self, task: Task) -> str:
        assert task.out
        return task.out.relative_to(self._folder(self.views[0])).with_suffix("").as_posix()

    def _playable(
        self, whole: Utterance, labels: list[Utterance], left_out: list[LeftOut]
    ) -> list[Utterance]:
        """Return the labels of a recording, which becomes FLAC where libsndfile does not read it.

        What cannot be converted is left out.
        """
        path = whole.path
        assert isinstance(path, Path)
        if not labels or not needs_conversion(path):
            return labels
        flac = self.out / _CONVERTED / copy_name(whole.id)
        try:
            to_flac(path, flac)
        except AudioError as error:
            left_out += [LeftOut(one.id, SPLIT, str(one.path), error.code) for one in labels]
            return []
        return [replace(one, path=flac, converted_from=path) for one in labels]


def _digest(lm: Path) -> str:
    """Return the digest of a language model: a file, or the files of a folder."""
    files = [path for path in (lm, *sorted(lm.glob("*"))) if path.is_file()]
    return sha256(b"".join(sha256(path.read_bytes()).digest() for path in files)).hexdigest()


def _files(cuts: Iterable[Cut]) -> set[Path]:
    """Return the files that the recordings of cuts are in, and those that they are copies of."""
    found = set[str]()
    for cut in cuts:
        sources = (source for each in recordings_of(cut) for source in each.sources)
        found.update(str(source.source) for source in sources if source.type == "file")
        found.update(path for path, _ in origins(cut))
    return {Path(path).resolve() for path in found}


def _parts(whole: Utterance, one: Transcript, other: Transcript) -> list[tuple[Utterance, Guess]]:
    """Return an utterance and its guess for each segment of a recording.

    There are none where the segments differ: then the two decodings are not of the same audio.
    """
    spans, others = ([(s.start, s.end) for s in t.segments] for t in (one, other))
    if spans != others:
        return []
    found = []
    for segment, second in zip(one.segments, other.segments, strict=True):
        guess = Guess(segment.text, second.text, segment.confidence, segment.ended != "length")
        part = replace(whole, text=segment.text, confidence=segment.confidence)
        if len(spans) > 1:
            seconds = segment.end - segment.start
            part = replace(
                part, id=f"{whole.id}-{segment.start:.2f}", start=segment.start, seconds=seconds
            )
        found.append((part, guess))
    return found
