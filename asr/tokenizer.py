"""Text to token ids and back with sentencepiece.

The papers' vocabulary is every character of the corpus with PAD, SOS and EOS (Winata et al. 2020;
Cahyawijaya 2021, section 4.2.1).
"""

import hashlib
import io
import struct
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Annotated, Literal

import sentencepiece as spm
from pydantic import Field

from asr.errors import BundleError, DataError
from asr.normalization import HAN_LETTER, Case, Punctuation, normalize_text
from asr.schema import FrozenModel

PAD, SOS, EOS, UNK = 0, 1, 2, 3
SPECIAL = (PAD, SOS, EOS, UNK)
MOST_TOKENS = 1 << 18
# Characters of a piece; the limit bounds the length of a decoded text. sentencepiece itself makes
# pieces of 16 characters at most.
_LONGEST_PIECE = 256

# Field numbers of a sentencepiece model: pieces, settings of the trainer, the normalizer. The line
# below has that of the normalizer and those of the rules in it.
_PARTS = (1, 2, 3)
_NORMALIZER, _RULES = 3, (2, 6)
_SIZES = {1: 8, 2: 0, 5: 4}  # bytes of a protobuf field by its kind; 0: the field has its size

_UNKNOWN = "\ue000"  # a character of private use, which no tokens have


class TokenizerConfig(FrozenModel):
    """The kind of tokens, their number with the special tokens, and the normalization of texts.

    For `char`, `vocab_size` is only the number that the recipe expects, so that it describes a
    model without its corpus; in training the corpus decides. `case` and `punctuation` hold for
    training texts, recognized texts and their comparison.
    """

    kind: Literal["char", "bpe", "unigram"] = "char"
    vocab_size: Annotated[int, Field(gt=len(SPECIAL), le=MOST_TOKENS)] | None = None
    case: Case = "upper"
    punctuation: Punctuation = "keep"

    def normalize(self, text: str) -> str:
        """Return a text as the model is trained on it and writes it."""
        return normalize_text(text, self.case, self.punctuation)


class Tokenizer:
    """A sentencepiece model of normalized texts; its first ids are PAD, SOS, EOS, UNK."""

    def __init__(self, model: bytes, normalize: Callable[[str], str] = normalize_text) -> None:
        self.model, self.normalize = model, normalize
        _check_model(model)
        try:
            self._sp = spm.SentencePieceProcessor(model_proto=model)
            ids = (self._sp.pad_id(), self._sp.bos_id(), self._sp.eos_id(), self._sp.unk_id())
            tokens = self.tokens() if self.vocab_size <= MOST_TOKENS else None
        except (RuntimeError, UnicodeDecodeError) as error:
            raise BundleError("tokenizer.model is not a sentencepiece model") from error
        if ids != SPECIAL:
            raise BundleError(
                f"tokenizer.model has PAD, SOS, EOS, UNK at {ids}, expected {SPECIAL}: use the one "
                "that `asr train` wrote"
            )
        if tokens is None or max(map(len, tokens)) > _LONGEST_PIECE:
            raise _too_large()
        self._has_space = any("▁" in token for token in tokens)

    @classmethod
    def train(cls, texts: Iterable[str], config: TokenizerConfig) -> "Tokenizer":
        """Learn the tokens of training texts, which are normalized here.

        Raises DataError if there is no text, or too little for the wanted vocabulary.
        """
        is_char = config.kind == "char"
        lines = [text for text in map(config.normalize, texts) if text]
        if not lines:
            raise DataError("no training transcript holds any text: there is nothing to tokenize")
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
                required_chars="".join(sorted(set("".join(lines)) - set(" ▁▅"))),
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
        return cls(model.getvalue(), config.normalize)

    @property
    def vocab_size(self) -> int:
        """Return the number of tokens, the special ones included."""
        return self._sp.get_piece_size()

    @property
    def digest(self) -> str:
        """Return the SHA-256 of the model, which identifies the tokenizer."""
        return hashlib.sha256(self.model).hexdigest()

    def tokens(self) -> list[str]:
        """Return all tokens in the order of their ids, a space as ▁."""
        return [self._sp.id_to_piece(i) for i in range(self.vocab_size)]

    def scores(self) -> list[float]:
        """Return sentencepiece's score of each token; that of a character is its log-frequency."""
        return [self._sp.get_score(i) for i in range(self.vocab_size)]

    def within(self, text: str) -> list[int]:
        """Return the token ids of a text that directly follows a Chinese character.

        No space precedes it, while `encode` puts one before each text unless tokens are characters.
        """
        tokens: list[int] = self._sp.encode(_UNKNOWN + self.normalize(text))
        return tokens[tokens.index(UNK) + 1 :] if UNK in tokens else tokens

    def unknown(self, texts: Iterable[str]) -> Counter[str]:
        """Count the characters of texts that have no token; a space counts as ▁."""
        counts = Counter("".join(map(self.normalize, texts)).replace(" ", "▁"))
        known = set(self.tokens())
        return Counter({character: n for character, n in counts.items() if character not in known})

    def grown(self, characters: Iterable[str]) -> "Tokenizer":
        """Return a tokenizer with one more token for each of these characters.

        The other tokens keep their ids. A text without these characters keeps its tokens, because
        the score of a one-character token affects no other token. The first new character counts as
        the most frequent one.
        """
        score = min(self.scores()) - 1.0
        more = b"".join(_piece(character, score - i) for i, character in enumerate(characters))
        return Tokenizer(self.model + more, self.normalize)

    def encode(self, text: str) -> list[int]:
        """Return token ids of a text without SOS and EOS; an unknown character becomes UNK.

        If no training text had a space, as in a corpus of single words, a space has no token and is
        left out.
        """
        text = self.normalize(text)
        ids: list[int] = self._sp.encode(text if self._has_space else text.replace(" ", ""))
        return ids

    def decode(self, tokens: Iterable[int]) -> str:
        """Return the text of token ids; special tokens have no text."""
        return self.normalize(self._sp.decode([t for t in tokens if t not in SPECIAL]))

    def token_texts(self, tokens: Iterable[int]) -> list[str]:
        """Return the text of each token, with a space before a word."""
        return [self._sp.id_to_piece(t).replace("▁", " ") for t in tokens]

    def word_counts(self) -> list[int]:
        """Return how many words each token adds to wc(Y) (Cahyawijaya 2021, eq. 4.1).

        Special tokens add 0. If all others are single characters, each adds 1. Otherwise each
        Chinese character counts as a word, and so does the beginning of another word.
        """
        tokens = self.tokens()[len(SPECIAL) :]
        is_char = all(len(token) == 1 for token in tokens)
        return [0] * len(SPECIAL) + [1 if is_char else _words_begun(token) for token in tokens]


def _check_model(model: bytes) -> None:
    """Raise BundleError for a model that rewrites texts, or that tests itself when it is loaded.

    The format is sentencepiece_model.proto. The rules of a normalizer or denormalizer can turn a
    token into any number of characters.
    """
    try:
        for number, (key, content) in enumerate(_fields(model)):
            if number > MOST_TOKENS + len(_PARTS):
                raise _too_large()
            if key not in _PARTS or not isinstance(content, bytes):
                raise BundleError(
                    "tokenizer.model has a denormalizer, or other parts that `asr train` does not "
                    "write: use the one that `asr train` wrote"
                )
            if key == _NORMALIZER and any(
                rule in _RULES and text for rule, text in _fields(content)
            ):
                raise BundleError(
                    "tokenizer.model has a normalizer with rules: use the one that `asr train` "
                    "wrote"
                )
    except (IndexError, ValueError) as error:
        raise BundleError("tokenizer.model is not a sentencepiece model") from error


def _piece(character: str, score: float) -> bytes:
    """Return a token as a field of a sentencepiece model; its text and score are fields in it."""
    text = character.encode()
    content = bytes((0x0A, len(text))) + text + b"\x15" + struct.pack("<f", score)
    return bytes((0x0A, len(content))) + content


def _too_large() -> BundleError:
    return BundleError(
        f"tokenizer.model has more than {MOST_TOKENS:,} tokens, or one of more than "
        f"{_LONGEST_PIECE} characters: use the one that `asr train` wrote"
    )


def _fields(message: bytes) -> Iterator[tuple[int, bytes | int]]:
    """Yield the number and the content, bytes or an integer, of each field of a protobuf message.

    Raises IndexError or ValueError if the bytes are no such message.
    """
    place = 0

    def number() -> int:
        nonlocal place
        value = shift = 0
        while True:
            byte = message[place]
            place, value, shift = place + 1, value | (byte & 127) << shift, shift + 7
            if byte < 128:
                return value
            if shift >= 70:
                raise ValueError("a number of more than 10 bytes")

    while place < len(message):
        key, kind = divmod(number() & 0xFFFFFFFF, 8)  # protobuf cuts tags to 32 bits
        if kind == 0:
            yield key, number()
            continue
        if kind not in _SIZES:
            raise ValueError(f"a field of kind {kind}")
        size = _SIZES[kind] or number()
        end = place + size
        if end > len(message):
            raise ValueError("a field ends after the message")
        yield key, message[place:end]
        place = end


def _words_begun(token: str) -> int:
    n_han = len(HAN_LETTER.findall(token))
    return n_han + (token.startswith("▁") and len(token) > 1 + n_han)
