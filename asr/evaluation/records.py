"""What an evaluation found, as a bundle stores it: read without the packages for a corpus."""

from asr.decoding.options import DecodingOptions
from asr.evaluation.cer import ErrorCounts
from asr.evaluation.confusions import WholeTexts
from asr.schema import FrozenModel, OmitNone


class UtteranceErrors(FrozenModel):
    """One utterance's errors in characters; `alignment` (of the worst ones) shows where they are.

    Both texts are normalized as the model's own texts are.
    """

    id: str
    errors: int
    reference: str
    hypothesis: str
    alignment: str = ""


class Evaluation(FrozenModel):
    """Results over a corpus.

    - `cer`: (substitutions + insertions + deletions) / reference_length over all characters.
    - `wer`: the same over all `words`. Both are absent where texts have no spaces between words.
    - `whole`: counts of whole texts, where each text recurs.
    - `mean_length`: the mean characters of a hypothesis, |X̄| of Cahyawijaya 2021, table 4.3.
    - `rtf`: seconds of work per second of audio, reading included.
    - `skipped`: unreadable recordings.
    - `uncertain`: utterances of which some text was left out as too uncertain.
    """

    cer: float
    wer: OmitNone[float] = None
    words: OmitNone[ErrorCounts] = None
    whole: OmitNone[WholeTexts] = None
    substitutions: int
    insertions: int
    deletions: int
    reference_length: int
    mean_length: float
    rtf: float
    audio_seconds: float
    utterances: int
    skipped: int
    uncertain: int = 0
    device: str
    decoding: DecodingOptions
    worst: tuple[UtteranceErrors, ...]

    def __str__(self) -> str:
        """Return sentences, with the rates in percent."""
        counts = (self.substitutions, self.insertions, self.deletions, self.reference_length)
        words = f"; {self.words.described('WER', 'words')}" if self.words else ""
        whole = f"; {self.whole}" if self.whole else ""
        uncertain = f"text of {self.uncertain} left out as uncertain; " if self.uncertain else ""
        return (
            f"{ErrorCounts(*counts)}{words}{whole}; {self.utterances} utterances of "
            f"{self.mean_length:.2f} characters on average, {self.skipped} skipped; {uncertain}"
            f"RTF {self.rtf:.4f}"
        )
