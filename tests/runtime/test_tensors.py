"""Modules that have shapes alone."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from asr.audio.features import LogMelConfig
from asr.model.transformer import ModelConfig
from asr.runtime.tensors import shapes_alone
from tests.helpers import ENCODER

SIZES = {"d_model": 16, "d_inner": 32, "n_heads": 2, "projection": {"kind": "dense"}}


def state(module: nn.Module) -> dict[str, tuple[torch.Size, torch.dtype]]:
    return {name: (t.shape, t.dtype) for name, t in module.state_dict().items()}


@pytest.mark.parametrize("kind", ENCODER)
def test_shapes_are_those_of_the_module_with_values(kind: str) -> None:
    encoder = {"n_layers": 1, "attention": {"kind": kind, **ENCODER[kind]}}
    config = ModelConfig.model_validate({**SIZES, "encoder": encoder, "decoder": {"n_layers": 1}})
    with shapes_alone():
        model = config.build(21, 30)
    assert state(model) == state(config.build(21, 30))
    assert all(weight.is_meta for weight in model.decoder.parameters())
    with shapes_alone():
        features = LogMelConfig(normalize="corpus").build()
    assert features.window.is_meta and features.window.shape == (400,)


def test_values_are_drawn_again_afterwards() -> None:
    with shapes_alone():
        nn.Linear(3, 4)
    torch.manual_seed(0)
    weight = nn.init.normal_(torch.zeros(1000))
    assert weight.std().item() == pytest.approx(1, abs=0.1)
    assert torch.hann_window(8).sum() == pytest.approx(4)


def test_a_loaded_model_has_not_imported_the_compiler(tiny_bundle: Path) -> None:
    """It would take as long as torch itself."""
    code = f"import asr, sys; asr.load({str(tiny_bundle)!r}, 'cpu'); print(*sys.modules)"
    shown = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout.split()
    assert "torch" in shown and "torch._dynamo" not in shown
