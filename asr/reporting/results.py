"""TODO: results."""

from pathlib import Path
from typing import Any

import torch
from pydantic import Field, ValidationError

from asr.bundle import CARD, EVALUATION
from asr.config import Config
from asr.errors import BundleError, ConfigError
from asr.evaluation.evaluate import Evaluation
from asr.model.size import count_parameters, parameters_by_part
from asr.runtime.files import write_atomically

_RESULTS = "## Results"


class KeptEvaluation(Evaluation):
    """The last evaluation of a bundle, of which `cuts`.

    `speed` is the rtf by kind of device (cpu, cuda), of all evaluations on these cuts with this
    search.
    """

    cuts: str
    speed: dict[str, float] = Field(default={})


def describe(config: Config, bundle: Path | None = None) -> dict[str, Any]:
    """The size of a recipe's model, by part; of a bundle, its last evaluation too.

    Nothing is read but the configuration: the vocabulary's size is the recipe's own.
    Raises ConfigError where the recipe does not tell it.
    """
    vocab_size = config.tokenizer.vocab_size
    if vocab_size is None:
        raise ConfigError(
            "tokenizer.vocab_size is not set, so the model's size is not known before training: "
            "set it, or ask of a trained bundle"
        )
    with torch.device("meta"):  # shapes without numbers
        model = config.model.build(config.features.n_freqs, vocab_size)
    facts: dict[str, Any] = {
        "parameters": count_parameters(model),
        "parts": parameters_by_part(model),
        "vocab_size": vocab_size,
        "n_freqs": config.features.n_freqs,
    }
    if bundle and (evaluation := read_evaluation(bundle)):
        facts["evaluation"] = evaluation.model_dump(mode="json")
    return facts


def read_evaluation(bundle: Path) -> KeptEvaluation | None:
    """The last evaluation, if there was one. Raises BundleError where its file is damaged."""
    path = bundle / EVALUATION
    if not path.is_file():
        return None
    try:
        return KeptEvaluation.model_validate_json(path.read_bytes())
    except ValidationError as error:
        raise BundleError(f"{path}: not an evaluation: remove it, or evaluate again") from error


def write_evaluation(bundle: Path, cuts: Path, result: Evaluation) -> None:
    """Keep a result in the bundle: evaluation.json, and a section of the card."""
    before = read_evaluation(bundle)
    alike = before and (before.cuts, before.decoding) == (str(cuts), result.decoding)
    speed = {**(before.speed if before and alike else {}), result.device.split(":")[0]: result.rtf}
    kept = KeptEvaluation(cuts=str(cuts), speed=speed, **dict(result))
    text = kept.model_dump_json(indent=2) + "\n"
    write_atomically(bundle / EVALUATION, lambda path: path.write_text(text, "utf-8"))
    card = (bundle / CARD).read_text("utf-8") if (bundle / CARD).is_file() else ""
    section = f"""{_RESULTS}

CER {result.cer:.2%} on {cuts} ({result.utterances} utterances; {result.substitutions}
substitutions, {result.insertions} insertions, {result.deletions} deletions of
{result.reference_length} characters), by `asr evaluate {bundle} {cuts}`.
"""
    body = card.split(_RESULTS)[0].rstrip()
    write_atomically(bundle / CARD, lambda path: path.write_text(f"{body}\n\n{section}", "utf-8"))
