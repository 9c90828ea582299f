"""Columns of CTC log-probabilities as sherpa-onnx wants them, and the symbols of these columns.

Legend: B utterances, S steps, V vocabulary.
"""

import torch
from torch import Tensor

from asr.decoding.ctc_prefix import BLANK
from asr.errors import ConfigError
from asr.tokenizer import SPECIAL, Tokenizer

_BLANK = "<blk>"
# sherpa-onnx reads a table as coded bytes if this is the largest byte of its symbols.
_LAST_BYTE_CODE = 0xC6
_NO_CODE = "～"


def without_special(logits_BSV: Tensor) -> Tensor:
    """Return the log-probabilities (B, S, V - 3) of the blank, as column 0, and of text tokens."""
    logp_BSV = logits_BSV.log_softmax(-1)
    return torch.cat((logp_BSV[..., BLANK : BLANK + 1], logp_BSV[..., len(SPECIAL) :]), -1)


def first(x: Tensor, n: int) -> Tensor:
    """Return the first n along axis 1; for a slice, torch would have to prove that n exist."""
    return x[:, torch.arange(n, device=x.device)]


def symbol_table(tokenizer: Tokenizer) -> str:
    """Return the lines of `tokens.txt`: a symbol and its column, ▁ for a space.

    Raises ConfigError for a token with a space or a line break, which would end its line.
    """
    symbols = [_BLANK, *tokenizer.tokens()[len(SPECIAL) :]]
    if wrong := next((symbol for symbol in symbols if symbol.split() != [symbol]), None):
        raise ConfigError(f"the token {wrong!a} is no word, and sherpa-onnx takes no other")
    last = max("".join(symbols).replace("▁", "").encode())
    if last == _LAST_BYTE_CODE:
        symbols.append(_NO_CODE)
    return "".join(f"{symbol} {column}\n" for column, symbol in enumerate(symbols))
