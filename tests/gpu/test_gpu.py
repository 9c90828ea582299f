"""What must hold on a GPU; where there is none these tests run on the CPU.

`python -m benchmarks.gpu` runs them on a machine that has one.
"""

import copy
from pathlib import Path

import pytest
import torch

import asr
from asr.config import Config
from asr.decoding.decode import SpeechDecoder
from asr.decoding.options import DecodingOptions
from asr.model.inference.decoder import for_inference
from asr.train.run import train
from benchmarks.random_models import noise_batch, random_bundle, training_step
from tests.helpers import Letters, beeps, same, tiny_model, tones_recipe

pytestmark = pytest.mark.gpu
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
SMALL = (
    "model.d_model=32", "model.d_inner=64", "model.projection.rank=8",
    "model.frontend.channels=[4, 8]", "model.encoder.n_layers=1", "model.decoder.n_layers=1",
)  # fmt: skip


@pytest.mark.parametrize("method", ["joint", "ctc_beam", "rescore", "ctc_greedy"])
def test_a_batch_on_the_device_has_the_texts_of_each_utterance_alone_on_the_cpu(
    method: str,
) -> None:
    model = tiny_model()
    torch.manual_seed(1)
    feats = [torch.randn(frames, 8) for frames in (40, 12, 27)]
    options = DecodingOptions(
        method=method, beam_size=4, ctc_weight=0.5, speech_threshold=0.0, confidence_threshold=0.0
    )  # type: ignore[arg-type]
    alone = SpeechDecoder(model, Letters())  # type: ignore[arg-type]
    expected = [
        alone.decode(alone.encode(f[None], torch.tensor([len(f)])), options)[0] for f in feats
    ]
    moved = copy.deepcopy(model).to(DEVICE)
    moved.decoder = for_inference(moved.decoder)
    batch = SpeechDecoder(moved, Letters())  # type: ignore[arg-type]
    feats_BTF = torch.nn.utils.rnn.pad_sequence(feats, batch_first=True).to(DEVICE)
    frames_B = torch.tensor([len(f) for f in feats], device=DEVICE)
    with torch.backends.cudnn.flags(allow_tf32=False):
        found = batch.decode(batch.encode(feats_BTF, frames_B), options)
    for one, other in zip(expected, found, strict=True):
        same(one, other)


def losses(device: torch.device, bfloat16: bool) -> list[float]:
    bundle = random_bundle("demo/lrt", SMALL)
    batch = noise_batch(bundle, 4, 0.8, 3).to(device)
    step = training_step(bundle, device, bfloat16)
    torch.manual_seed(0)
    return [float(step(batch)) for _ in range(12)]


def test_training_on_the_device_has_the_losses_of_the_cpu_in_bfloat16_nearly() -> None:
    expected = losses(torch.device("cpu"), False)
    assert expected[-1] < expected[0] - 1  # it learns
    assert losses(DEVICE, False) == pytest.approx(expected, rel=5e-3)
    assert losses(DEVICE, True) == pytest.approx(expected, rel=3e-2)


def test_a_run_on_the_device_makes_a_bundle_that_the_cpu_reads(tones: Path, tmp_path: Path) -> None:
    config = Config.model_validate(tones_recipe(tones, training={"epochs": 1, "average": 1}))
    out = train(config, tmp_path / "run", device=str(DEVICE))
    texts = []
    for device in ("cpu", str(DEVICE)):
        recognizer = asr.load(out, device)
        options = recognizer.config.decoding.model_copy(update={"confidence_threshold": 0.0})
        wave = torch.from_numpy(beeps(2)[:, 0]).float()
        texts.append([h.tokens for h in recognizer.hypotheses([wave], options)[0][:1]])
    assert texts[0] == texts[1]
    assert f"1 x {DEVICE.type}" in (out / "README.md").read_text("utf-8")
