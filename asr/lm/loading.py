"""Load a language model: an ARPA file, or a folder of `asr train-lm`."""

from pathlib import Path

import torch

from asr.decoding.decode import LanguageModel
from asr.lm.ngram import NGram
from asr.lm.transformer import LanguageTransformer
from asr.model.inference.sparse import prepare_for_inference
from asr.tokenizer import Tokenizer


def load_language_model(path: Path, tokenizer: Tokenizer, device: torch.device) -> LanguageModel:
    """Return a language model of a tokenizer's tokens.

    Raises BundleError where it cannot be read or has other tokens.
    """
    if not path.is_dir():
        return NGram.load(path, tokenizer).to(device)
    model = LanguageTransformer.load(path, tokenizer).to(device)
    prepare_for_inference(model)
    return model
