"""The tokenizer of a run: trained on its texts, or that of the run or bundle it starts from."""

import re
import unicodedata
from collections.abc import Sequence
from pathlib import Path

from asr.bundle import TOKENIZER, Bundle
from asr.config import Config
from asr.data.manifest import text_of
from asr.errors import AsrError, ConfigError
from asr.joining import UNSPACED
from asr.runtime.files import read_bytes
from asr.tokenizer import Tokenizer
from asr.train.checkpoints import states
from asr.train.datamodule import SpeechDataModule

# A letter of a script that has spaces between words: no digits, kana, Thai, Khmer.
_SPACED = re.compile(rf"[^\W\d_{UNSPACED}]")


def tokens_of_run(config: Config, state: Path, datamodule: SpeechDataModule) -> Tokenizer:
    """Return the tokenizer of the run to resume, that of `training.init`, or a new one."""
    if states(state):
        return _tokenizer_of_run(state, config)
    if init := config.training.init:
        return _tokenizer_of_init(init, config, datamodule)
    others = datamodule.replay.cuts if datamodule.replay else ()
    texts = [text_of(cut) for cut in (*datamodule.train_cuts, *others)]
    return Tokenizer.train([*texts, *_joined(config, texts)], config.tokenizer)


def _joined(config: Config, texts: Sequence[str]) -> list[str]:
    """Return one text with a space, joined from two, if no training text has a space.

    `augment.pauses` joins texts in this way, so the tokenizer needs the space. The list is empty
    where that is not so: for scripts without spaces, and for digits.
    """
    pauses, tokenizer = config.augment and config.augment.pauses, config.tokenizer
    if not (pauses and pauses.joined and tokenizer.kind == "char"):
        return []
    found = [text for text in map(tokenizer.normalize, texts) if text]
    if any(" " in text for text in found):
        return []
    spaced = (
        text for text in found if _SPACED.match(text[0]) and _SPACED.match(_letters(text)[-1:])
    )
    pairs = (tokenizer.normalize(f"{text} {text}") for text in spaced)
    return next(([pair] for pair in pairs if " " in pair), [])


def _letters(text: str) -> str:
    """Return a text without the marks on its letters, such as the vowels of Hindi."""
    return "".join(c for c in text if unicodedata.category(c)[0] != "M")


def _tokenizer_of_init(init: Path, config: Config, datamodule: SpeechDataModule) -> Tokenizer:
    """Return the tokenizer of the bundle `init`.

    Raises ConfigError where the recipe's kind of tokens, normalization, features or heads differ
    from the bundle's, or where the tokens cannot write the training texts.
    """
    bundle = Bundle.load(init)
    for name in ("kind", "case", "punctuation"):
        own, other = (getattr(c.tokenizer, name) for c in (config, bundle.config))
        if own != other:
            raise ConfigError(
                f"tokenizer.{name} is {own}, but {other} in training.init {init}, whose tokens are "
                f"used: set it to {other}"
            )
    if (
        config.features != bundle.config.features
        or config.model.n_heads != bundle.config.model.n_heads
    ):
        raise ConfigError(
            f"features and model.n_heads are not those of training.init {init}, whose weights have "
            "learned from them: give the same, or train without training.init"
        )
    replay = datamodule.replay.utterances if datamodule.replay else ()
    if unknown := bundle.tokenizer.unknown(map(text_of, (*datamodule.utterances, *replay))):
        some = "".join(character for character, _ in unknown.most_common(10))
        raise ConfigError(
            f"training.init {init} has no tokens for {len(unknown)} characters of "
            f"{config.data.train_names}, such as {some}: use `asr finetune`, which adds them"
        )
    return bundle.tokenizer


def _tokenizer_of_run(state: Path, config: Config) -> Tokenizer:
    try:
        return Tokenizer(read_bytes(state / TOKENIZER), config.tokenizer.normalize)
    except (AsrError, OSError) as error:
        raise ConfigError(
            f"{state / TOKENIZER}: damaged ({error}), the run cannot be continued: give another "
            "folder"
        ) from error
