"""What a fine-tuning did: error rates before and after, for programs and on the model card."""

from pathlib import Path

from asr.evaluation.cer import rates_text
from asr.evaluation.records import Evaluation
from asr.reporting.results import write_section
from asr.runtime.files import read_json, write_text
from asr.schema import FrozenModel, OmitNone

_FILE, _HEADING = "finetune.json", "## Fine-tuning"


class Rates(FrozenModel):
    """The error rates on some utterances; `wer` is absent where texts have no words."""

    cer: float
    wer: OmitNone[float] = None
    utterances: int

    @classmethod
    def of(cls, evaluation: Evaluation) -> "Rates":
        """Return the rates of an evaluation."""
        return cls(cer=evaluation.cer, wer=evaluation.wer, utterances=evaluation.utterances)

    def __str__(self) -> str:
        return rates_text(self.cer, self.wer)


class Change(FrozenModel):
    """Rates on the same utterances, of the bundle as it was given and of the result."""

    before: Rates
    after: Rates | None = None

    def __str__(self) -> str:
        return f"{self.before} before, {self.after or 'unknown'} after"


class Outcome(FrozenModel):
    """The record of a fine-tuning of the bundle at `bundle`.

    `source` and `result` are digests of the weights before and after, `data` is that of the
    manifests. `canary` are the rates on utterances of the older corpus that this training does not
    use. `had_lm`: the bundle had a language model, which the result lacks. `canary_of_train`: the
    older corpus has no dev set, so the canary set is from its training set.
    """

    bundle: str
    source: str
    corpus: str
    new_tokens: int
    dev: Change
    canary: Change | None = None
    result: str | None = None
    data: str | None = None
    replayed: bool = False
    had_lm: bool = False
    canary_of_train: bool = False

    def __str__(self) -> str:
        parts = [
            f"Fine-tuned from {self.bundle} on {self.corpus}, with {self.new_tokens} new tokens.",
            f"New recordings: {self.dev} ({self.dev.before.utterances} utterances of dev, which "
            "chose the epochs: the true rate is higher).",
        ]
        if self.canary:
            note = (
                "; the bundle was probably trained on them: its rate before is too low to compare"
            )
            trained = note if self.canary_of_train else ""
            parts.append(
                f"What it knew: {self.canary} ({self.canary.before.utterances} utterances of the "
                f"older corpus, which this training did not see{trained})."
            )
        else:
            why = (
                "all of the older corpus's dev is in the new recordings."
                if self.replayed
                else "--replay OLD_CORPUS does, and lessens it."
            )
            parts.append(f"What it has forgotten was not measured: {why}")
        if self.had_lm:
            parts.append(
                "All rates are without the language model of the old tokens, which the result does "
                "not have: `asr train-lm` makes one of the new ones."
            )
        return "\n".join(parts)


def read_outcome(bundle: Path) -> Outcome | None:
    """Read the outcome in a folder so far, if any. Raises BundleError where it is damaged."""
    what = "the record of an `asr finetune`: give another --out"
    return read_json(bundle / _FILE, Outcome, what)


def write_outcome(bundle: Path, outcome: Outcome) -> None:
    """Store an outcome in a folder; if it is finished, also on the card of the bundle there."""
    if outcome.result:
        write_section(bundle, _HEADING, str(outcome))
    write_text(bundle / _FILE, outcome.model_dump_json(indent=2) + "\n")
