"""Training of a small language model on a recogniser's transcripts, or on any text.

A plain loop: texts are short and a step is one line. `training/last.ckpt` beside the model holds
everything to go on to the same weights: a killed run loses a few hundred steps at most.
"""

import hashlib
import logging
import random
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy
from torch.nn.utils import clip_grad_norm_
from torch.nn.utils.rnn import pad_sequence

from asr.bundle import WEIGHTS, Bundle
from asr.data.manifest import load_cuts, text_of
from asr.errors import ConfigError, DataError
from asr.lm.transformer import LanguageTransformer, LmConfig
from asr.runtime.files import write_atomically
from asr.tokenizer import EOS, PAD, SOS, Tokenizer

log = logging.getLogger(__name__)

_BATCH_TOKENS = 2000
_LR, _CLIP = 1e-3, 1.0
_SAVE_STEPS = 200


def train_lm(
    bundle: Bundle, texts: list[Path], out: Path, epochs: int, resume: bool, device: torch.device,
    on_epoch: Callable[[int, float, float], None] = lambda *_: None,
) -> None:  # fmt: skip
    """Train on the transcripts of the bundle's training cuts, or on `texts`, a line each.

    The model has the recogniser's own sizes. The epoch that knows the dev cuts' texts best is
    what `out` holds; `on_epoch` is told epoch, training loss and dev loss, nats a token. Raises
    ConfigError where `out` holds a run already, or goes on with one of other tokens or texts;
    DataError where there is no text.
    """
    state_path = out / "training" / "last.ckpt"
    if state_path.is_file() and not resume:
        raise ConfigError(
            f"{out}: holds a run already: go on with it by --resume, or give another --out"
        )
    data = bundle.config.data
    lines = _lines(texts) if texts else map(text_of, load_cuts(data.train))
    train, dev = (_tokens(x, bundle.tokenizer) for x in (lines, map(text_of, load_cuts(data.dev))))
    torch.manual_seed(bundle.config.seed)
    shape = LmConfig(vocab_size=bundle.tokenizer.vocab_size, model=bundle.config.model)
    model = LanguageTransformer(shape).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=_LR, betas=(0.9, 0.98))
    data_of_run = {
        "tokenizer": bundle.tokenizer.digest, "texts": _digest(train), "dev texts": _digest(dev),
    }  # fmt: skip
    progress: dict[str, Any] = {
        "epoch": 0, "step": 0, "best": float("inf"), "batch": 0, "loss": 0.0, "tokens": 0,
        **data_of_run,
    }  # fmt: skip
    if state_path.is_file():
        progress |= _restore(state_path, model, optimizer, data_of_run)
    steps = epochs * len(_batches(train, 0))
    for epoch in range(int(progress["epoch"]), epochs):
        batches = _batches(train, epoch)
        loss = _epoch(model, optimizer, batches, progress, steps, bundle.config.seed, state_path)
        dev_loss = _evaluate(model, _batches(dev, None), device)
        if dev_loss < progress["best"] or not (out / WEIGHTS).is_file():
            progress["best"] = dev_loss
            model.save(out, bundle.tokenizer)
        progress |= {"epoch": epoch + 1, "batch": 0, "loss": 0.0, "tokens": 0}
        _keep(state_path, model, optimizer, progress)
        on_epoch(epoch + 1, loss, dev_loss)


def _lines(files: list[Path]) -> Iterable[str]:
    for path in files:
        try:
            yield from path.read_text("utf-8").splitlines()
        except (OSError, UnicodeError) as error:
            raise DataError(f"{path}: cannot be read as UTF-8 text ({error})") from error


def _tokens(texts: Iterable[str], tokenizer: Tokenizer) -> list[Tensor]:
    """SOS, tokens and EOS of every text that is not empty, the shortest first."""
    found = [tokenizer.encode(text) for text in texts]
    tokens = [torch.tensor([SOS, *t, EOS]) for t in sorted(found, key=len) if t]
    if not tokens:
        raise DataError("no text to train or judge a language model by: give files of text")
    return tokens


def _digest(texts: list[Tensor]) -> str:
    """What tells one list of texts from another."""
    return hashlib.sha256(str([text.tolist() for text in texts]).encode()).hexdigest()


def _batches(texts: list[Tensor], epoch: int | None) -> list[Tensor]:
    """Padded texts of like length, in an order that follows from the epoch."""
    batches: list[Tensor] = []
    group: list[Tensor] = []
    for text in texts:
        if group and (len(group) + 1) * len(text) > _BATCH_TOKENS:
            batches.append(pad_sequence(group, batch_first=True, padding_value=PAD))
            group = []
        group.append(text)
    batches.append(pad_sequence(group, batch_first=True, padding_value=PAD))
    if epoch is not None:
        random.Random(epoch).shuffle(batches)
    return batches


def _loss(model: LanguageTransformer, tokens_BU: Tensor) -> Tensor:
    """The sum of the loss over the tokens of a batch."""
    logits_BUV = model(tokens_BU[:, :-1])
    targets = tokens_BU[:, 1:].flatten()
    return cross_entropy(logits_BUV.flatten(0, 1), targets, ignore_index=PAD, reduction="sum")


def _epoch(
    model: LanguageTransformer, optimizer: torch.optim.Optimizer, batches: list[Tensor],
    progress: dict[str, Any], steps: int, seed: int, state_path: Path,
) -> float:  # fmt: skip
    """What is left of an epoch; returns its mean loss. Chance follows from seed and step."""
    model.train()
    device = next(model.parameters()).device
    for batch in batches[int(progress["batch"]) :]:
        tokens_BU = batch.to(device)
        n = int((tokens_BU[:, 1:] != PAD).sum())
        step = progress["step"] = progress["step"] + 1
        torch.manual_seed(seed * 1_000_003 + int(step))
        warmup = 1 + steps // 20
        rate = _LR * min(step / warmup, max(0.0, 1 - (step - warmup) / steps))
        for group in optimizer.param_groups:
            group["lr"] = rate
        loss = _loss(model, tokens_BU)
        optimizer.zero_grad()
        (loss / n).backward()
        clip_grad_norm_(model.parameters(), _CLIP)
        optimizer.step()
        progress["batch"] += 1
        progress["loss"] += loss.item()
        progress["tokens"] += n
        if step % _SAVE_STEPS == 0:
            _keep(state_path, model, optimizer, progress)
    return progress["loss"] / progress["tokens"]


@torch.inference_mode()
def _evaluate(model: LanguageTransformer, batches: list[Tensor], device: torch.device) -> float:
    model.eval()
    total = sum(_loss(model, batch.to(device)).item() for batch in batches)
    return total / sum(int((batch[:, 1:] != PAD).sum()) for batch in batches)


def _keep(path: Path, model: LanguageTransformer, optimizer: Any, progress: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), **progress}
    write_atomically(path, lambda temporary: torch.save(state, temporary))


def _restore(
    path: Path, model: LanguageTransformer, optimizer: Any, data_of_run: dict[str, str]
) -> dict[str, Any]:
    """The progress that was kept, if it is of the same tokens and texts."""
    try:
        state = torch.load(path, weights_only=True, map_location="cpu")
        other = [name for name, digest in data_of_run.items() if state[name] != digest]
        if not other:
            model.load_state_dict(state.pop("model"))
            optimizer.load_state_dict(state.pop("optimizer"))
    except Exception as error:
        raise ConfigError(
            f"{path}: not the state of this model's training: give another --out"
        ) from error
    if other:
        raise ConfigError(
            f"{path}: was trained with other {' and '.join(other)}: go on with those it began "
            "with, or give another --out"
        )
    return state
