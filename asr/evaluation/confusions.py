"""Count confusions of whole texts, for a corpus of words or commands, where each text recurs."""

from collections import Counter
from collections.abc import Iterable

from pydantic import PositiveInt
from tabulate import tabulate

from asr.schema import FrozenModel

_RECURRENCE = 2  # utterances of each text on average, at least
_MOST = 100  # confusions


class Confusion(FrozenModel):
    """A text that was recognized as another one, and how many times."""

    reference: str
    hypothesis: str
    times: int


class WholeTexts(FrozenModel):
    """Utterances of which no character is wrong, and the most frequent confusions."""

    right: int
    utterances: PositiveInt
    texts: PositiveInt  # different references
    confusions: tuple[Confusion, ...] = ()

    def __str__(self) -> str:
        """Return a sentence, with the share in percent."""
        return (
            f"{self.right / self.utterances:.2%} of utterances right: {self.right} of "
            f"{self.utterances}, of {self.texts} different texts"
        )

    def table(self, most: int) -> str:
        """Return a table of up to `most` confusions for a terminal."""
        rows = [
            (one.reference, one.hypothesis or "(no text)", one.times)
            for one in self.confusions[:most]
        ]
        return tabulate(rows, ["said", "recognized", "times"], disable_numparse=True)


def count_whole_texts(pairs: Iterable[tuple[str, str]]) -> WholeTexts | None:
    """Count normalized references and hypotheses; None where texts do not recur, as in speech."""
    counts = Counter(pairs)
    n_utterances, n_texts = counts.total(), len({reference for reference, _ in counts})
    if n_utterances < max(1, _RECURRENCE * n_texts):
        return None
    wrong = {pair: times for pair, times in counts.items() if pair[0] != pair[1]}
    ordered = sorted(wrong.items(), key=lambda item: (-item[1], item[0]))
    return WholeTexts(
        right=n_utterances - sum(wrong.values()),
        utterances=n_utterances,
        texts=n_texts,
        confusions=tuple(
            Confusion(reference=reference, hypothesis=hypothesis, times=times)
            for (reference, hypothesis), times in ordered[:_MOST]
        ),
    )
