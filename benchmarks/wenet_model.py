"""Build WeNet's U2++ Conformer from a checkout of WeNet, for `benchmarks.wenet`."""

import argparse
import importlib
import sys
import typing
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import torch
from torch import Tensor


def import_wenet(checkout: Path) -> None:
    """Make WeNet importable without langid and whisper, which its model code does not use."""
    sys.path.insert(0, str(checkout))
    langid, whisper = ModuleType("langid.langid"), ModuleType("whisper.tokenizer")
    unused = SimpleNamespace(from_modelstring=lambda *_, **__: None)
    vars(langid).update(LanguageIdentifier=unused, model=None)
    vars(whisper).update(LANGUAGES={}, get_tokenizer=None)
    for module in (langid, whisper):
        package = module.__name__.partition(".")[0]
        sys.modules.update({package: ModuleType(package), module.__name__: module})
    for name in ("Optional", "Union", "Tensor"):  # an older torch had them there
        value = Tensor if name == "Tensor" else getattr(typing, name)
        setattr(torch.nn.modules.conv, name, value)
    try:
        importlib.import_module("wenet.models.transformer.asr_model")
    except ImportError as error:
        sys.exit(f"{checkout}: no checkout of WeNet of the recorded commit ({error})")


def build(frames: Tensor, n_tokens: int, args: argparse.Namespace) -> Any:
    """Return the model; `frames` (n_frames, 80) give the mean and deviation of its input.

    Token 0 is the blank, the last one begins and ends a text.
    """

    def part(module: str, name: str) -> Any:
        return getattr(importlib.import_module(f"wenet.models.transformer.{module}"), name)

    size, chunks, end = args.d_model, not args.whole_context, n_tokens - 1
    shared = {"attention_heads": 4, "linear_units": args.inner, "dropout_rate": 0.1}
    encoder = part("encoder", "ConformerEncoder")(
        80, size, num_blocks=args.layers, input_layer="conv2d", pos_enc_layer_type="rel_pos",
        selfattention_layer_type="rel_selfattn", cnn_module_kernel=8 if chunks else 15,
        causal=chunks, use_dynamic_chunk=chunks, cnn_module_norm="layer_norm",
        attention_dropout_rate=0.1,
        global_cmvn=part("cmvn", "GlobalCMVN")(frames.mean(0), 1 / frames.std(0)), **shared,
    )  # fmt: skip
    decoder = part("decoder", "BiTransformerDecoder")(
        n_tokens, size, num_blocks=1, r_num_blocks=1, **shared
    )
    ctc = part("ctc", "CTC")(n_tokens, size)
    give_float32(ctc.ctc_lo, decoder.left_decoder.output_layer, decoder.right_decoder.output_layer)
    return part("asr_model", "ASRModel")(
        n_tokens, encoder, decoder, ctc, ctc_weight=args.ctc_weight,
        reverse_weight=0.3, lsm_weight=0.1, special_tokens={"<sos>": end, "<eos>": end},
    )  # fmt: skip


def give_float32(*layers: torch.nn.Module) -> None:
    """Have layers give logits of 32 bits: autocast on a GPU does this itself for a softmax."""
    for layer in layers:
        layer.register_forward_hook(lambda _layer, _inputs, logits: logits.float())
