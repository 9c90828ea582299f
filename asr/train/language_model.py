"""Training of a small language model on a recognizer's transcripts, or on any text.

Trainer, checkpoints and resumption are shared with the recognizer's training. Legend: B texts,
U tokens, V vocabulary.
"""

import hashlib
import logging
import random
from collections.abc import Iterable
from itertools import chain
from pathlib import Path

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader

from asr.bundle import TOKENIZER, WEIGHTS, Bundle
from asr.config import Config
from asr.data.dataset import Batch, MicroBatches
from asr.data.manifest import load_cuts, load_training_cuts, text_of
from asr.data.sampling import EpochSteps
from asr.errors import ConfigError, DataError
from asr.lm.texts import read_texts
from asr.lm.transformer import LanguageTransformer, LmConfig
from asr.runtime.files import write_text
from asr.tokenizer import EOS, PAD, SOS, Tokenizer
from asr.train.checkpoints import HISTORY, Checkpoints, check_room, has_run
from asr.train.datamodule import TrainingData
from asr.train.distributed import sole_run
from asr.train.step import TrainingModule
from asr.train.trainer import fit
from asr.training_config import LinearSchedule, TrainingConfig

log = logging.getLogger(__name__)

_BATCH_TOKENS = 2000
_EPOCHS = 10  # where none are given
_STORED = "begun_with.txt"  # in `training`: the number of epochs that a run was begun with


class TextDataModule(TrainingData):
    """Batches of texts of similar length, in a random order that follows from the epoch."""

    def __init__(self, config: Config, train: list[list[int]], dev: list[list[int]]) -> None:
        super().__init__(config)
        self.train, self.dev = _batches(train), _batches(dev)

    def train_dataloader(self) -> DataLoader[MicroBatches]:
        """Return a loader of the epoch's remaining steps."""
        assert self.trainer is not None
        order = list(range(len(self.train)))
        random.Random(self.trainer.current_epoch).shuffle(order)
        sampler = EpochSteps(order, self.done)
        return DataLoader(self.train, batch_size=None, sampler=sampler)  # type: ignore[arg-type]

    def val_dataloader(self) -> DataLoader[MicroBatches]:
        """Return a loader of all dev texts."""
        return DataLoader(self.dev, batch_size=None)  # type: ignore[arg-type]


class LanguageModule(TrainingModule):
    """A language model in training, with cross-entropy."""

    model: LanguageTransformer

    def losses(self, batch: Batch, feats_BTF: Tensor) -> Tensor:
        """Return the cross-entropy (1,), summed over the tokens of a batch; features are unused."""
        logits_BUV = self.model(batch.tokens_BU[:, :-1])
        targets = batch.tokens_BU[:, 1:].flatten()
        return cross_entropy(logits_BUV.flatten(0, 1), targets, ignore_index=PAD, reduction="sum")[
            None
        ]

    def labels(self, batch: Batch) -> Tensor:
        """Return (2,): the number of tokens to predict, EOS included, and 0."""
        return torch.tensor([int(batch.lengths_B.sum()) - len(batch.lengths_B), 0])


def train_lm(
    bundle: Bundle,
    texts: list[Path],
    out: Path,
    epochs: int | None,
    resume: bool,
    device: torch.device,
) -> None:
    """Train on the transcripts of the bundle's training cuts, or on text files or manifests.

    The model has the recognizer's own sizes; `out` holds the epoch of the lowest loss on the dev
    cuts' texts. If `epochs` is None, a resumed run keeps its number, and a new run has 10.
    Raises ConfigError where `out` holds a bundle, a model or, without `resume`, a run, or where the
    run to resume has other tokens, sizes or texts, or more epochs. Raises DataError without text.
    """
    if (out / TOKENIZER).exists():
        raise ConfigError(
            f"{out}: holds a recognizer, which the language model would overwrite: give another "
            "--out"
        )
    with sole_run(out / "training"):
        # A model without a history is of a run killed before its first state: it may be replaced.
        is_kept = _read_epochs(out) is None or (out / "training" / HISTORY).exists()
        if not has_run(out, resume) and (out / WEIGHTS).exists() and is_kept:
            raise ConfigError(f"{out}: holds a model already: give another --out, or remove it")
        before = _read_epochs(out) if resume else None
        if before and epochs and epochs < before:
            raise ConfigError(
                f"{out}: was begun with {before} epochs, not {epochs}: continue it without "
                "--epochs, or with more"
            )
        try:
            _train_lm(bundle, texts, out, epochs or before or _EPOCHS, device)
        except ConfigError:
            if before:  # nothing was trained
                write_text(out / "training" / _STORED, f"{before}\n")
            raise


def _train_lm(
    bundle: Bundle, texts: list[Path], out: Path, epochs: int, device: torch.device
) -> None:
    tokenizer, data = bundle.tokenizer, bundle.config.data
    if not texts:
        log.info("the transcripts are those of %s", data.train_names)
    lines = (
        chain.from_iterable(map(read_texts, texts))
        if texts
        else map(text_of, load_training_cuts(data))
    )
    train, dev = (_encode(x, tokenizer) for x in (lines, map(text_of, load_cuts(data.dev))))
    n_steps = epochs * len(_batches(train))
    training = TrainingConfig(
        epochs=epochs,
        schedule=LinearSchedule(kind="linear", lr=1e-3, warmup_steps=1 + n_steps // 20),
        clip_norm=1.0,
        average=1,
        precision="float32",
    )
    config = bundle.config.model_copy(update={"training": training})
    torch.manual_seed(config.seed)
    model = LanguageTransformer(LmConfig(vocab_size=tokenizer.vocab_size, model=config.model))
    if not has_run(out, resume=True):
        check_room(out / "training", model, average=1)
    module = LanguageModule(model, config, n_steps)
    module.identity = {"tokenizer": tokenizer.digest, "sizes": config.model.model_dump_json()}
    for name, found in (("texts", train), ("dev texts", dev)):
        module.identity[name] = hashlib.sha256(str(found).encode()).hexdigest()
    datamodule = TextDataModule(config, train, dev)
    write_text(out / "training" / _STORED, f"{epochs}\n")
    # `average` is 1: when an epoch is the best so far, its weights are those of `model`.
    checkpoints = Checkpoints(
        out / "training", module, datamodule, lambda _: model.save(out, tokenizer)
    )
    fit(module, checkpoints, device)


def _read_epochs(out: Path) -> int | None:
    """Return how many epochs a run was begun with, None for a run of an older version."""
    path = out / "training" / _STORED
    return int(path.read_text()) if path.is_file() else None


def _encode(texts: Iterable[str], tokenizer: Tokenizer) -> list[list[int]]:
    """Return SOS, tokens and EOS of every text that is not empty, the shortest first."""
    found = sorted((tokenizer.encode(text) for text in texts), key=len)
    if not any(found):
        raise DataError("no text to train or evaluate a language model on: give files of text")
    return [[SOS, *tokens, EOS] for tokens in found if tokens]


def _batches(texts: list[list[int]]) -> list[MicroBatches]:
    """Return batches of texts: utterances without recordings."""
    groups: list[list[list[int]]] = [[]]
    for text in texts:
        if groups[-1] and (len(groups[-1]) + 1) * len(text) > _BATCH_TOKENS:
            groups.append([])
        groups[-1].append(text)
    return [MicroBatches([_batch(group)], []) for group in groups]


def _batch(texts: list[list[int]]) -> Batch:
    tokens = [torch.tensor(text) for text in texts]
    return Batch(
        ids=[str(text) for text in texts],
        texts=[],
        feats_BTF=torch.zeros(len(texts), 0, 0),
        frames_B=torch.zeros(len(texts)).long(),
        tokens_BU=pad_sequence(tokens, batch_first=True, padding_value=PAD),
        lengths_B=torch.tensor([len(text) for text in texts]),
    )
