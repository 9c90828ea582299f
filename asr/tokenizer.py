"""Text to token ids and back: one normalisation for training, decoding and scoring; sentencepiece.

The papers' vocabulary is every character of the corpus with PAD, SOS and EOS (thesis 4.2.1).
"""

import hashlib
import io
import re
import unicodedata
from collections.abc import Iterable
from typing import Annotated, Literal

import sentencepiece as spm
from pydantic import Field

from asr.errors import BundleError, DataError
from asr.schema import FrozenModel

PAD, SOS, EOS, UNK = 0, 1, 2, 3
SPECIAL = (PAD, SOS, EOS, UNK)

_HAN = r"\u3007\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
_SPACE_BESIDE_HAN = re.compile(rf"(?<=[{_HAN}])\s+|\s+(?=[{_HAN}])")
_HAN_LETTER = re.compile(rf"[{_HAN}]")


def normalize_text(text: str) -> str:
    """Fold what speech cannot tell apart: width (NFKC), case, and spaces where Mandarin has none.

    Spaces beside a Chinese character go (word segmentation is no part of the transcript), others
    collapse to one, so that "今天 ｇｏ  on" becomes "今天GO ON".
    """
    text = unicodedata.normalize("NFKC", text).upper()
    return " ".join(_SPACE_BESIDE_HAN.sub("", text).split())


class TokenizerConfig(FrozenModel):
    """What a token is.

    `vocab_size` counts the special tokens too. For `char` it is what the recipe expects: the size
    of a model that is described before its corpus is there, replaced by the corpus's own.
    """

    kind: Literal["char", "bpe", "unigram"] = "char"
    vocab_size: Annotated[int, Field(gt=len(SPECIAL))] | None = None


class Tokenizer:
    """A sentencepiece model with the ids PAD, SOS, EOS, UNK in front."""

    def __init__(self, model: bytes) -> None:
        self.model = model
        try:
            self._sp = spm.SentencePieceProcessor(model_proto=model)
            ids = (self._sp.pad_id(), self._sp.bos_id(), self._sp.eos_id(), self._sp.unk_id())
        except RuntimeError as error:
            raise BundleError("tokenizer.model is not a sentencepiece model") from error
        if ids != SPECIAL:
            raise BundleError(
                f"tokenizer.model has PAD, SOS, EOS, UNK at {ids}, not at {SPECIAL}: "
                "it was not made by `asr train`"
            )

    @classmethod
    def train(cls, texts: Iterable[str], config: TokenizerConfig) -> "Tokenizer":
        """Learn the tokens of normalized training texts.

        Raises DataError where there is no text, or too little for the wanted vocabulary.
        """
        is_char = config.kind == "char"
        lines = [text for text in map(normalize_text, texts) if text]
        if not lines:
            raise DataError("no training transcript holds any text: there is nothing to tokenise")
        size = len(set("".join(lines))) + len(SPECIAL) if is_char else config.vocab_size or 5000
        model = io.BytesIO()
        try:
            spm.SentencePieceTrainer.train(
                sentence_iterator=iter(lines),
                model_writer=model,
                model_type=config.kind,
                vocab_size=size,
                hard_vocab_limit=not is_char,
                use_all_vocab=is_char,
                character_coverage=1.0,
                max_sentence_length=1 << 20,
                normalization_rule_name="identity",
                add_dummy_prefix=not is_char,
                pad_id=PAD, bos_id=SOS, eos_id=EOS, unk_id=UNK,
                pad_piece="<PAD>", bos_piece="<SOS>", eos_piece="<EOS>", unk_piece="<UNK>",
                num_threads=1,
                minloglevel=2,
            )  # fmt: skip
        except RuntimeError as error:
            raise DataError(
                f"tokenizer.vocab_size {size} does not fit the training transcripts "
                f"({str(error).splitlines()[-1].strip()})"
            ) from error
        return cls(model.getvalue())

    @property
    def vocab_size(self) -> int:
        """The number of tokens, the special ones included."""
        return self._sp.get_piece_size()

    @property
    def digest(self) -> str:
        """What tells one tokenizer from another."""
        return hashlib.sha256(self.model).hexdigest()

    def pieces(self) -> list[str]:
        """The tokens as sentencepiece writes them, a space as ▁, in the order of their ids."""
        return [self._sp.id_to_piece(i) for i in range(self.vocab_size)]

    def encode(self, text: str) -> list[int]:
        """Token ids of a normalized text, without SOS and EOS; unknown characters become UNK."""
        return self._sp.encode(normalize_text(text))

    def decode(self, tokens: Iterable[int]) -> str:
        """The text of token ids; special tokens are silent."""
        return normalize_text(self._sp.decode([t for t in tokens if t not in SPECIAL]))

    def token_texts(self, tokens: Iterable[int]) -> list[str]:
        """The text of each token, with a space where a word begins."""
        return [self._sp.id_to_piece(t).replace("▁", " ") for t in tokens]

    def word_counts(self) -> list[int]:
        """How much each token adds to wc(Y) of thesis eq. 4.1.

        A character for character models. For word pieces a Chinese character is a word, and so is
        a piece that opens one.
        """
        pieces = self.pieces()
        if all(len(piece) == 1 for piece in pieces[len(SPECIAL) :]):
            counts = [1] * len(pieces)
        else:
            counts = [_words_opened(piece) for piece in pieces]
        return [0 if i in SPECIAL else count for i, count in enumerate(counts)]


def _words_opened(piece: str) -> int:
    han = len(_HAN_LETTER.findall(piece))
    return han + (piece.startswith("▁") and len(piece) > 1 + han)
