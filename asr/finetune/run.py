"""Fine-tuning, top to bottom: a bundle and recordings, more tokens, a training, what it changed.

Two things are beside the new bundle. The training starts from `initial/`: the given bundle with the
tokens that it lacked. `finetune.json` has the error rates before and after.
"""

import hashlib
import os
import shutil
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from lhotse import CutSet

from asr.bundle import WEIGHTS, Bundle
from asr.config import Config
from asr.data.manifest import load_cuts, text_of
from asr.data.replay import canary_set, draw_sample
from asr.errors import AsrError, ConfigError
from asr.evaluation.evaluate import evaluate
from asr.finetune.corpus import check_fit, read_corpus
from asr.finetune.outcome import Change, Outcome, Rates, read_outcome, write_outcome
from asr.finetune.recipe import WITHOUT_LM, adapt, limits
from asr.runtime.devices import choose_device
from asr.runtime.files import lock_folder
from asr.runtime.memory import keep_kernels
from asr.train.checkpoints import has_run, states
from asr.train.run import is_begun, train
from asr.transcription.recognizer import Recognizer

_INITIAL = "initial"


@dataclass(frozen=True)
class Finetuning:
    """A bundle `source` that is to learn from the corpus in `data`, the result in `out`.

    `replay` is an older corpus, `freeze` names parts of the network, `overrides` are `key=value`.
    """

    source: Path
    data: Path
    out: Path
    replay: Path | None = None
    freeze: list[str] = field(default_factory=list)
    overrides: list[str] = field(default_factory=list)

    def run(self, resume: bool = False, device: str = "auto") -> Outcome:
        """Train, unless that is done already, and return the error rates before and after.

        Raises DataError where the corpus does not fit, ConfigError where `out` holds something
        else, or where torchrun started several processes.
        """
        if int(os.environ.get("WORLD_SIZE", "1")) > 1:
            raise ConfigError("asr finetune works in one process: start it without torchrun")
        choose_device(device)  # raises now if there is no such device
        keep_kernels()  # before the recordings are transcribed
        bundle, digest = Bundle.load(self.source), _digest(self.source)
        outcome = self._begun(resume, digest)
        is_new = outcome is None and not self.out.exists()
        try:
            outcome = self._train(bundle, digest, outcome, resume, device)
        except AsrError:
            if is_new and not states(self.out / "training"):
                with suppress(ConfigError), lock_folder(self.out / "training"):  # no other has it
                    shutil.rmtree(self.out, ignore_errors=True)
            raise
        return self._finished(outcome, device)

    def _train(
        self, bundle: Bundle, digest: str, outcome: Outcome | None, resume: bool, device: str
    ) -> Outcome:
        corpus = read_corpus(self.data, bundle, limits(bundle.config, self.overrides))
        check_fit(corpus, bundle, self.source)
        init = self.out / _INITIAL
        config = adapt(bundle.config, corpus, init, self.replay, self.freeze, self.overrides)
        if outcome is None:
            samples, replay, plain = _samples(config), config.data.replay, _without_lm(bundle)
            old = bundle.tokenizer.unknown(map(text_of, load_cuts(replay.train) if replay else ()))
            new = [character for character, _ in (corpus.unknown + old).most_common()]
            plain.grown(new).save(init, f"{self.source} with {len(new)} new tokens, untrained.\n")
            dev, canary = _rates(plain, samples, device)
            outcome = Outcome(
                bundle=str(self.source),
                source=digest,
                corpus=f"{corpus.utterances} utterances ({corpus.hours:.3g} h) of {self.data}",
                new_tokens=len(new),
                dev=Change(before=dev),
                canary=Change(before=canary) if canary else None,
                data=_data_digest(config),
                replayed=replay is not None,
                had_lm=bundle.config.decoding.lm is not None,
                canary_of_train=replay is not None and replay.dev is None,
            )
            write_outcome(self.out, outcome)
        elif outcome.data not in (None, _data_digest(config)):
            raise ConfigError(
                f"{self.out}: {self.data} or the older corpus has changed since this run began: "
                "give another --out"
            )
        train(config, self.out, resume, device)
        return outcome

    def _begun(self, resume: bool, digest: str) -> Outcome | None:
        """Return the outcome so far of a run to resume, None for a new run.

        Raises ConfigError where `out` holds a bundle or another run.
        """
        if not has_run(self.out, resume):
            # A kill between a run's first bundle and its first state leaves the bundle.
            begun = read_outcome(self.out) if resume else None
            is_own = begun and begun.source == digest and is_begun(self.out)
            if (self.out / WEIGHTS).exists() and not is_own:
                raise ConfigError(f"{self.out}: holds a bundle already: give another --out")
            return None
        outcome = read_outcome(self.out)
        if outcome is None or outcome.source != digest:
            of_what = f"a fine-tuning of {outcome.bundle}" if outcome else "an `asr train`"
            raise ConfigError(
                f"{self.out}: holds the run of {of_what}, not of {self.source} as it is now: give "
                "another --out"
            )
        return outcome

    def _finished(self, outcome: Outcome, device: str) -> Outcome:
        """Return the outcome with the rates of the result; measure them unless they are stored."""
        digest = _digest(self.out)
        if outcome.result != digest:
            bundle = Bundle.load(self.out)
            dev, canary = _rates(bundle, _samples(bundle.config), device)
            changes = {
                "dev": outcome.dev.model_copy(update={"after": dev}),
                "canary": outcome.canary and outcome.canary.model_copy(update={"after": canary}),
                "result": digest,
            }
            outcome = outcome.model_copy(update=changes)
            write_outcome(self.out, outcome)
        return outcome


def _without_lm(bundle: Bundle) -> Bundle:
    """Return a bundle without its language model, which knows only the old tokens."""
    decoding = bundle.config.decoding.model_copy(update=WITHOUT_LM)
    return replace(bundle, config=bundle.config.model_copy(update={"decoding": decoding}))


def _samples(config: Config) -> list[CutSet]:
    """Return a sample of dev, and then the canary set if the recipe has an older corpus."""
    dev = draw_sample(list(load_cuts(config.data.dev)))
    return [CutSet.from_cuts(cuts) for cuts in (dev, canary_set(config.data)) if cuts]


def _rates(bundle: Bundle, samples: list[CutSet], device: str) -> tuple[Rates, Rates | None]:
    """Return a bundle's rates on dev, and on the canary set if there is one."""
    recognizer = Recognizer(bundle, device)
    dev, *canary = (Rates.of(evaluate(recognizer, cuts)) for cuts in samples)
    return dev, canary[0] if canary else None


def _digest(bundle: Path) -> str:
    return _digest_of(bundle / WEIGHTS)


def _data_digest(config: Config) -> str:
    """Return a digest of the manifests that a recipe names; for shards, of their paths."""
    data = config.data
    replay = (data.replay.train, data.replay.dev) if data.replay else ()
    paths = [Path(path) for path in (*data.train, data.dev, *replay) if path]
    digests = (_digest_of(path) if path.is_file() else str(path) for path in paths)
    return hashlib.sha256("".join(digests).encode()).hexdigest()


def _digest_of(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
