"""The evaluation that a bundle stores, and the description of a model."""

import shlex
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from pydantic import Field

from asr.bundle import CARD, EVALUATION, Bundle, is_within
from asr.config import Config
from asr.decoding.options import DecodingOptions
from asr.evaluation.records import Evaluation, UtteranceErrors
from asr.model.degrees import DegreeFit, fit_degrees
from asr.model.projection import BlockSparse, sparse_maps
from asr.model.size import parameters_by_part
from asr.runtime.files import read_bytes, read_json, write_text
from asr.runtime.tensors import shapes_alone
from asr.tokenizer import SPECIAL

RESULTS = "## Results"
_OF_VOCABULARY = ("embedding", "output projection", "CTC head")


class KeptEvaluation(Evaluation):
    """The last evaluation of a bundle, on `cuts`.

    `speed` is the real-time factor by kind of device (cpu, cuda), from all evaluations on these
    cuts with these options. `int8` tells whether they were computed in 8 bits.
    """

    cuts: str
    int8: bool = False
    speed: dict[str, float] = Field(default={})

    @property
    def setting(self) -> tuple[str, DecodingOptions, bool]:
        """Return what errors and speed depend on besides the bundle and the device."""
        return self.cuts, self.decoding, self.int8


def describe(config: Config, bundle: Path | None = None) -> dict[str, Any]:
    """Return the size of a recipe's model by part and, for a bundle, its last evaluation.

    For a bundle with sparse maps, `degrees` is the fit to the degrees of all of them.
    Without `tokenizer.vocab_size`, the parts whose size depends on it are listed under `missing`.
    """
    vocab_size = config.tokenizer.vocab_size
    with shapes_alone():
        model = config.model.build(config.features.n_freqs, vocab_size or len(SPECIAL) + 1)
    parts = parameters_by_part(model)
    missing = [part for part in parts if part in _OF_VOCABULARY and vocab_size is None]
    known = {part: size for part, size in parts.items() if part not in missing}
    facts: dict[str, Any] = {
        "parameters": sum(known.values()),
        "parts": known,
        "missing": missing,
        "vocab_size": vocab_size,
        "n_freqs": config.features.n_freqs,
    }
    if bundle and (evaluation := read_evaluation(bundle)):
        facts["evaluation"] = evaluation.model_dump(mode="json")
    if bundle and any(sparse_maps(model)):
        maps = dict(sparse_maps(Bundle.load(bundle).model))
        facts["sparse_maps"] = len(maps)
        single = [each for each in maps.values() if not isinstance(each, BlockSparse)]
        if single and (fit := fit_degrees([each.product().detach() for each in single])):
            facts["degrees"] = asdict(fit)
    return facts


def degrees_in_words(degrees: dict[str, Any]) -> str:
    """Return the fit of degrees that `describe` returns as text for a reader."""
    fit = DegreeFit(**degrees)
    return (
        f"mean {fit.mean:.1f}, largest {fit.largest}; from {fit.first} on ({fit.tail:.0%} of the "
        f"nodes) a power law with exponent {fit.exponent:.2f} is {fit.power_law_distance:.3f} "
        f"away, a random graph {fit.random_distance:.3f} (Kolmogorov-Smirnov)"
    )


def read_evaluation(bundle: Path) -> KeptEvaluation | None:
    """Read the last evaluation, if there was one. Raises BundleError where it is damaged."""
    what = "an evaluation: remove it, or evaluate again"
    return read_json(bundle / EVALUATION, KeptEvaluation, what)


def write_evaluation(
    bundle: Path,
    cuts: Path,
    result: Evaluation,
    arguments: Sequence[str] = (),
    int8: bool = False,
) -> None:
    """Store a result in the bundle: evaluation.json, and a section of the card.

    `arguments` are the arguments of `asr evaluate` after the bundle and the cuts.
    """
    before = read_evaluation(bundle)
    kept = KeptEvaluation(cuts=str(cuts), int8=int8, **dict(result))
    speed = {**(before.speed if before and before.setting == kept.setting else {})}
    speed[result.device.split(":")[0]] = result.rtf
    kept = kept.model_copy(update={"speed": speed})
    write_text(bundle / EVALUATION, kept.model_dump_json(indent=2) + "\n")
    card, is_own = bundle / CARD, is_within(bundle, bundle / CARD)  # else a link to any file
    text = read_bytes(card).decode("utf-8", "replace") if is_own and card.is_file() else ""
    command = shlex.join(["asr", "evaluate", str(bundle), str(cuts), *arguments])
    section = f"{RESULTS}\n\n{result}, by `{command}`.\n"
    write_text(card, f"{text.split(RESULTS)[0].rstrip()}\n\n{section}")


def write_section(bundle: Path, heading: str, text: str) -> None:
    """Write a section into the card of a bundle, before the results, in place of an older one."""
    head, results, rest = (bundle / CARD).read_text("utf-8").partition(RESULTS)
    head = head.partition(heading)[0].rstrip()
    write_text(bundle / CARD, f"{head}\n\n{heading}\n\n{text}\n\n{results}{rest}")


def write_hypotheses(path: Path, utterances: Iterable[UtteranceErrors]) -> None:
    """Write id, reference, hypothesis and errors of all utterances as JSON lines, by id."""
    ordered = sorted(utterances, key=lambda utterance: utterance.id)
    lines = (utterance.model_dump_json(exclude={"alignment"}) for utterance in ordered)
    write_text(path, "".join(f"{line}\n" for line in lines))
