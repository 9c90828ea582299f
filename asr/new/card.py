"""What to expect of a model, on its card."""

from pathlib import Path

from asr.bundle import CARD
from asr.evaluation.cer import rates_text
from asr.evaluation.records import Evaluation
from asr.new.measure import CorpusMeasures
from asr.reporting.results import RESULTS, write_section

_HEADING = "## What to expect"
_LITTLE_HOURS, _FEW_UTTERANCES, _MANY_KNOWN = 10.0, 100, 0.5


def expectation(corpus: CorpusMeasures, split: str, evaluation: Evaluation) -> str:
    """Return sentences on what an evaluation on dev or test says, and on what it does not."""
    if corpus.synthetic:
        return (
            f"Measured on {evaluation.utterances} utterances of synthetic voices that are not in "
            f"its training: {_rates(evaluation)}. No person speaks in its training: people will be "
            "recognized far worse. With recordings of them refine it (asr finetune), and compare a "
            "training on them alone (asr new --recordings), which had fewer errors of 20 words "
            "from 7.5 minutes."
        )
    size = corpus.splits[split]
    who = f"{size.speakers} speakers who are" if size.speakers > 1 else "one speaker who is"
    spoken = f"{evaluation.utterances} utterances"
    rates = _rates(evaluation)
    parts = [
        f"Measured on {spoken} of {who} not in its training: {rates}; "
        "other voices, rooms and microphones will be worse."
        if size.is_unseen
        else f"Measured on {spoken} that are not in its training, while their speakers are, or are "
        f"not named: {rates}; other people will be recognized worse, and so "
        "will other rooms and microphones."
    ]
    if split == "dev":
        parts.append("These utterances chose the epochs, so the true rate is higher.")
    if evaluation.utterances < _FEW_UTTERANCES:
        parts.append("So few utterances give a rough figure.")
    if corpus.hours < _LITTLE_HOURS:
        of_whom = f" of {corpus.speakers} speakers" if corpus.speakers > 1 else ""
        if of_whom and corpus.unnamed:
            of_whom = f" of {corpus.speakers} named speakers and others"
        parts.append(
            f"It was trained on {corpus.hours:.2g} h{of_whom}, which is little: expect the words "
            "and voices of the training, not others."
        )
    if size.known_texts > _MANY_KNOWN:
        parts.append(
            f"{size.known_texts:.0%} of these texts are in its training too: other words and "
            "sentences will be recognized far worse."
        )
    if evaluation.cer > 0.5:
        parts.append(
            "With more than half of the characters wrong it is of no use yet. What helps: more "
            "recordings, a model of other people's speech in this language to begin with (asr "
            "finetune), or, where the dev CER still falls, a longer training."
        )
    return " ".join(parts)


def _rates(evaluation: Evaluation) -> str:
    return rates_text(evaluation.cer, evaluation.wer)


def read_expectation(bundle: Path) -> str:
    """Return what the card says to expect; empty where it says nothing yet."""
    card = (bundle / CARD).read_text("utf-8") if (bundle / CARD).is_file() else ""
    return card.partition(f"{_HEADING}\n")[2].partition(RESULTS)[0].strip()


def elsewhere(evaluation: Evaluation) -> str:
    """Return what an evaluation says of a model that was trained on other recordings too."""
    return (
        f"Measured on {evaluation.utterances} utterances: {_rates(evaluation)}. Its training had "
        "other recordings than those of this corpus alone, or began with a bundle that had: "
        "whether these utterances or their speakers are among them was not looked at."
    )


def write_expectation(bundle: Path, text: str) -> None:
    """Write the text into the card of an evaluated bundle, before the results."""
    write_section(bundle, _HEADING, text)
