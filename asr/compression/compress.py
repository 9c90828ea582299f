"""Compression of a trained network: weights as products of low rank (Cahyawijaya 2021, 2.3).

>>> from asr.compression.compress import factorize
>>> smaller, layers = factorize(any_module, "svd", energy=0.9, modules=["encoder.*"])

Weights are matrices W (O, I), from I inputs to O outputs; a factorization of rank R is
W ≈ second (O, R) · first (R, I). A grouped convolution has such a matrix for each group G.
"""

import logging
import shutil
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import asdict, dataclass, replace
from fnmatch import fnmatch
from pathlib import Path
from typing import Any, TypedDict, Unpack, get_args

import numpy as np
import torch
from lhotse import CutSet
from torch import Tensor, nn

from asr.bundle import CONFIG, WEIGHTS, Bundle, is_within
from asr.compression.solvers import SOLVERS, Method
from asr.data.manifest import load_cuts
from asr.errors import BundleError, ConfigError
from asr.evaluation.evaluate import evaluate
from asr.evaluation.records import Evaluation
from asr.model.factorization import factorable, factors_of, low_rank_pair, weight_matrices
from asr.model.size import count_parameters
from asr.reporting.model_card import model_card
from asr.reporting.results import write_evaluation
from asr.runtime.files import open_regular
from asr.runtime.int8 import from_int8, to_int8
from asr.transcription.recognizer import Recognizer

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Layer:
    """A factorized module: the (outputs, inputs) and the rank of its matrix, per group.

    `error` is ‖W - second · first‖ / ‖W‖ (Frobenius), `before` and `after` count its weights.
    """

    name: str
    shape: tuple[int, int]
    rank: int
    error: float
    before: int
    after: int


class Choice(TypedDict, total=False):
    """The arguments of `factorize` that choose ranks and modules."""

    rank: float | None
    energy: float | None
    modules: Sequence[str]


def factorize(
    module: nn.Module,
    method: Method = "svd",
    *,
    rank: float | None = None,
    energy: float | None = None,
    modules: Sequence[str] = ("*",),
) -> tuple[nn.Module, list[Layer]]:
    """Return a copy of a module with linear maps and convolutions of low rank, and a list of these.

    `rank` is the rank of every module (per group of a convolution). A `rank` below 1 is a share of
    the rank at which nothing would be saved. `energy` instead chooses each module's rank to keep
    this share of its squared singular values. `modules` are patterns of names (`encoder.*`).
    Modules that would not become smaller stay, and so do those with tied weights. The method
    `random` ignores the weights: it is a start for training. Raises ConfigError if an argument is
    invalid or a weight is not finite.
    """
    _check(method, rank, energy, modules)
    holder = nn.Sequential(deepcopy(module))  # so that the module itself can be replaced
    units: dict[nn.Module, nn.Module] = {}
    layers, named = [], factorable(holder[0])
    for pattern in modules:
        if not any(fnmatch(name, pattern) for name in named):
            raise ConfigError(f"modules {pattern}: no map or convolution has such a name")
    for name, old in named.items():
        if not any(fnmatch(name, pattern) for pattern in modules):
            continue
        if old not in units:
            weight_GOI = weight_matrices(old)
            if not weight_GOI.isfinite().all():
                raise ConfigError(
                    f"{name or 'the module'}: not all of its weights are finite: train it again, "
                    "or leave it out of modules"
                )
            chosen = _rank(weight_GOI, rank, energy)
            if not _saves(old, chosen):
                continue
            units[old] = low_rank_pair(old, chosen).to(weight_GOI).train(old.training)
            layers.append(_fill(name, old, units[old], chosen, method))
            log.info("%s: rank %d, error %.1f %%", name, chosen, 100 * layers[-1].error)
        holder.set_submodule(f"0.{name}" if name else "0", units[old])
    return holder[0], layers


@dataclass(frozen=True)
class Report:
    """The result of a compression; pairs are before and after, `evaluations` None without cuts."""

    layers: list[Layer]
    parameters: tuple[int, int]
    bytes: tuple[int, int]
    evaluations: tuple[Evaluation, Evaluation] | None

    def facts(self) -> dict[str, str]:
        """Return texts for a reader, by name."""
        (many, few), (large, small) = self.parameters, self.bytes
        facts = {
            "parameters": f"{many:,} -> {few:,} ({few / many:.1%})",
            "weights on the disk": f"{large / 1e6:.2f} -> {small / 1e6:.2f} MB",
        }
        if self.layers:
            mean = sum(layer.error for layer in self.layers) / len(self.layers)
            name = "reconstruction error, mean of modules"
            facts[name] = f"{mean:.1%} of {len(self.layers)} modules"
        if self.evaluations:
            before, after = self.evaluations
            facts["CER"] = f"{before.cer:.2%} -> {after.cer:.2%}"
            if before.wer is not None:
                facts["WER"] = f"{before.wer:.2%} -> {after.wer:.2%}"
            facts["RTF"] = f"{before.rtf:.4f} -> {after.rtf:.4f}"
        return facts

    def as_dict(self) -> dict[str, Any]:
        """Return plain values, for JSON."""
        values, evaluations = asdict(self), self.evaluations or ()
        del values["evaluations"]
        has_wer = any(e.wer is not None for e in evaluations)
        names = ("cer", *(["wer"] if has_wer else []), "rtf")
        rates = {name: [getattr(e, name) for e in evaluations] or None for name in names}
        return values | rates


def compress_bundle(
    source: Path,
    out: Path,
    method: Method = "svd",
    *,
    int8: bool = False,
    cuts: Path | None = None,
    **choice: Unpack[Choice],
) -> Report:
    """Compress the bundle `source` to `out`; with cuts, evaluate both.

    With `int8` the larger weights are stored in 8 bits, and nothing is factorized unless a rank or
    an energy is given. Raises ConfigError where `out` holds something already. A failure leaves no
    bundle there.
    """
    if out.exists() and not (out.is_dir() and not any(out.iterdir())):
        raise ConfigError(f"{out}: exists and is no empty folder: give --out a new one")
    chosen = {choice.get("rank"), choice.get("energy")} - {None}
    if int8 and not chosen and (method != "svd" or list(choice.get("modules", "*")) != ["*"]):
        raise ConfigError("--method and --modules are for --rank or --energy: give one of these")
    bundle = Bundle.load(source)
    is_factorized = not int8 or bool(chosen)
    copied = replace(bundle, model=deepcopy(bundle.model)), list[Layer]()
    smaller, layers = compress(bundle, method, **choice) if is_factorized else copied
    if int8:
        weights = from_int8(to_int8(smaller.parts.state_dict()), out)
        smaller.parts.load_state_dict(weights)  # so that what is evaluated is what is written
    parameters = (count_parameters(bundle.model), count_parameters(smaller.model))
    named = [method, *(f"{k} {v}" for k, v in choice.items() if v is not None)]
    how = ", ".join([*(named if is_factorized else ()), *(["weights in 8 bits"] if int8 else ())])
    facts = {"compressed from": source, "by": how, "parameters before": f"{parameters[0]:,}"}
    evaluations = None
    if cuts:
        utterances = load_cuts(cuts)
        # A recognizer changes its network for inference, and this one is still to be saved.
        copy = replace(smaller, model=deepcopy(smaller.model))
        evaluations = (_evaluate(bundle, utterances), _evaluate(copy, utterances))
    smaller = _with_language_model(smaller, source, out)
    smaller.save(out, model_card(smaller.config, parameters[1], facts), int8)
    if cuts and evaluations:
        write_evaluation(out, cuts, evaluations[1])
    size = tuple((folder / WEIGHTS).stat().st_size for folder in (source, out))
    return Report(layers, parameters, (size[0], size[1]), evaluations)


def _with_language_model(bundle: Bundle, source: Path, out: Path) -> Bundle:
    """Copy a bundle's language model to `out`; return the bundle with the path of the copy.

    The tokens stay the same, so the language model still fits.
    """
    decoding = bundle.config.decoding
    if decoding.lm is None or not decoding.lm.exists():
        return bundle
    copied = out / decoding.lm.resolve().relative_to(source.resolve())
    names = (CONFIG, WEIGHTS) if decoding.lm.is_dir() else ("",)
    copies = {decoding.lm / name: copied / name for name in names}
    for file in copies:
        if not is_within(source, file):  # a stranger's link, to a file that should not be copied
            raise BundleError(f"{file}: leads out of the bundle: put the file itself there")
    for file, copy in copies.items():
        copy.parent.mkdir(parents=True, exist_ok=True)
        with open_regular(file) as content, copy.open("wb") as target:
            shutil.copyfileobj(content, target)
    decoding = decoding.model_copy(update={"lm": copied})
    return replace(bundle, config=bundle.config.model_copy(update={"decoding": decoding}))


def _evaluate(bundle: Bundle, cuts: CutSet) -> Evaluation:
    evaluation = evaluate(Recognizer(bundle), cuts)
    size = count_parameters(bundle.model)
    log.info("%.2f M parameters: CER %.2f %%", size / 1e6, 100 * evaluation.cer)
    return evaluation


def compress(
    bundle: Bundle, method: Method = "svd", **choice: Unpack[Choice]
) -> tuple[Bundle, list[Layer]]:
    """Factorize a bundle's network (see `factorize`) and store its ranks in the recipe.

    Raises ConfigError where no module becomes smaller.
    """
    network, layers = factorize(bundle.model, method, **choice)
    if not layers:
        rank, names = choice.get("rank"), " or ".join(choice.get("modules", ["*"]))
        change = "lower the energy" if rank is None else "lower the rank"
        change = "raise the rank" if rank is not None and rank < 1 else change
        raise ConfigError(
            f"no module named like {names} becomes smaller: {change}, or choose other modules"
        )
    ranks = {**bundle.config.model.ranks, **{layer.name: layer.rank for layer in layers}}
    model = bundle.config.model.model_copy(update={"ranks": ranks})
    config = bundle.config.model_copy(update={"model": model})
    return Bundle(config, bundle.tokenizer, bundle.features, network), layers  # type: ignore[arg-type]


def _check(method: str, rank: float | None, energy: float | None, modules: Sequence[str]) -> None:
    if method not in get_args(Method):
        raise ConfigError(f"method {method}: give one of {', '.join(get_args(Method))}")
    if (rank is None) == (energy is None):
        raise ConfigError("give either a rank or an energy: each chooses the ranks")
    if rank is not None and not (0 < rank < 1 or (rank >= 1 and rank % 1 == 0)):
        raise ConfigError(f"rank {rank:g}: give a whole number, or a share above 0 and below 1")
    if energy is not None and not 0 < energy <= 1:
        raise ConfigError(f"energy {energy:g}: give a share above 0 and at most 1")
    if isinstance(modules, str):
        raise ConfigError(f"modules {modules!r}: give a list of patterns, [{modules!r}]")


def _saves(module: nn.Module, rank: int) -> bool:
    groups, outputs, inputs = weight_matrices(module).shape
    n_bias = 0 if module.bias is None else groups * outputs
    return 0 < groups * rank * (outputs + inputs) < count_parameters(module) - n_bias


def _rank(weight_GOI: Tensor, rank: float | None, energy: float | None) -> int:
    _, outputs, inputs = weight_GOI.shape
    if rank is not None:
        limit = outputs * inputs / (outputs + inputs)
        return int(rank if rank >= 1 else rank * limit)
    values_GK = torch.linalg.svdvals(weight_GOI.double())
    shares = np.cumsum(values_GK.square().sum(0).cpu().numpy())
    return min(int(np.searchsorted(shares, energy * shares[-1] * (1 - 1e-12))) + 1, len(shares))


def _fill(name: str, old: nn.Module, unit: nn.Module, rank: int, method: Method) -> Layer:
    """Copy the factors of `old`'s weight, and its bias, to `unit`, which replaces it."""
    weight_GOI = weight_matrices(old).double()
    first, second = factors_of(unit)
    if method != "random":
        factors = [SOLVERS[method](weight, rank) for weight in weight_GOI]
        for end, parts in zip((first, second), zip(*factors, strict=True), strict=True):
            assert isinstance(end.weight, Tensor)
            end.weight.data.copy_(torch.cat(parts).view_as(end.weight))
    if old.bias is not None:
        assert isinstance(second.bias, Tensor) and isinstance(old.bias, Tensor)
        second.bias.data.copy_(old.bias)
    product_GOI = weight_matrices(second).double() @ weight_matrices(first).double()
    error = (weight_GOI - product_GOI).norm() / weight_GOI.norm().clamp(min=1e-300)
    _, n_out, n_in = weight_GOI.shape
    return Layer(
        name, (n_out, n_in), rank, float(error), count_parameters(old), count_parameters(unit)
    )
