"""Run other engines with the shape of ours.

transformers and CTranslate2 run as decoders, sherpa-onnx as a whole recognizer.
"""

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

STEPS, BEAM, TOKENS, VOCAB, D = 112, 8, 24, 4364, 512
SPECIALS = {"sos": 1, "eos": 2, "pad": 0}
Run = Callable[[int], object]


def _speech2text() -> Any:
    from transformers import Speech2TextConfig, Speech2TextForConditionalGeneration

    torch.manual_seed(0)
    config = Speech2TextConfig(
        vocab_size=VOCAB, d_model=D, encoder_layers=2, decoder_layers=4, encoder_ffn_dim=2048,
        decoder_ffn_dim=2048, encoder_attention_heads=8, decoder_attention_heads=8,
        max_source_positions=6000, max_target_positions=1024, input_feat_per_channel=80,
        bos_token_id=SPECIALS["sos"], eos_token_id=SPECIALS["eos"], pad_token_id=SPECIALS["pad"],
        decoder_start_token_id=SPECIALS["sos"], conv_channels=1024, num_conv_layers=2,
    )  # fmt: skip
    return Speech2TextForConditionalGeneration(config).eval()


def transformers_generate() -> Run:
    """Return a run of `generate` with a given encoder output: only the decoder is measured."""
    from transformers.modeling_outputs import BaseModelOutput

    model, memories = _speech2text(), torch.randn(32, STEPS, D)

    def run(batch: int) -> None:
        found = model.generate(
            encoder_outputs=BaseModelOutput(last_hidden_state=memories[:batch]),
            num_beams=BEAM, min_new_tokens=TOKENS, max_new_tokens=TOKENS, do_sample=False,
        )  # fmt: skip
        assert found.shape[1] >= TOKENS

    return torch.inference_mode()(run)


def ctranslate2_translate(compute_type: str, workers: int, threads: int) -> Run:
    """Return a run of CTranslate2 with our decoder's shape and the smallest encoder it can have.

    Its encoder is one layer of width 512 and reads as many symbols as we have encoder positions.
    """
    import ctranslate2

    folder = Path(tempfile.mkdtemp()) / "model"
    _write_ctranslate2(folder)
    translator = ctranslate2.Translator(
        str(folder), device="cpu", compute_type=compute_type, inter_threads=workers,
        intra_threads=threads,
    )  # fmt: skip
    source = [f"w{i}" for i in range(4, 4 + STEPS)]

    def run(batch: int) -> None:
        found = translator.translate_batch(
            [source] * batch, beam_size=BEAM, min_decoding_length=TOKENS,
            max_decoding_length=TOKENS, max_batch_size=max(1, batch // workers),
        )  # fmt: skip
        assert all(len(each.hypotheses[0]) == TOKENS for each in found)

    return run


def sherpa_onnx_ctc(waves: torch.Tensor, is_small: bool, threads: int) -> Run:
    """Return a run of sherpa-onnx from waveforms (B, N), by the encoder and CTC head of our LRT.

    sherpa-onnx can take no more of the model: it decodes greedily, without the decoder. `is_small`
    takes the front end of best.yaml.
    """
    import sherpa_onnx

    from asr.export import sherpa
    from benchmarks.random_models import best_frontend, random_bundle

    changes = ["model.ctc_weight=0.3", *(best_frontend() if is_small else [])]
    folder = Path(tempfile.mkdtemp()) / "model"
    sherpa.export(random_bundle("aishell1/lrt_r50", changes), folder)
    recognizer = sherpa_onnx.OfflineRecognizer.from_omnilingual_asr_ctc(
        model=str(folder / sherpa.MODEL), tokens=str(folder / sherpa.TOKENS), num_threads=threads
    )
    samples = waves.numpy()

    def run(batch: int) -> None:
        for wave in samples[:batch]:
            stream = recognizer.create_stream()
            stream.accept_waveform(16000, wave)
            recognizer.decode_stream(stream)

    return run


def _write_ctranslate2(folder: Path) -> None:
    from ctranslate2.specs import TransformerSpec, common_spec

    spec = TransformerSpec.from_config(
        (1, 4), 8, pre_norm=True, activation=common_spec.Activation.RELU
    )
    rng = torch.Generator().manual_seed(0)

    def fill(layer: Any, n_out: int, n_in: int) -> None:
        layer.weight = (torch.randn(n_out, n_in, generator=rng) * n_in**-0.5).numpy()
        layer.bias = torch.zeros(n_out).numpy()

    def norm(layer: Any) -> None:
        layer.gamma, layer.beta = torch.ones(D).numpy(), torch.zeros(D).numpy()

    for stack in (spec.encoder, spec.decoder):
        embeddings = stack.embeddings[0] if isinstance(stack.embeddings, list) else stack.embeddings
        embeddings.weight = (torch.randn(VOCAB, D, generator=rng) * D**-0.5).numpy()
        stack.position_encodings.encodings = torch.randn(1024, D, generator=rng).numpy()
        norm(stack.layer_norm)
        for layer in stack.layer:
            norm(layer.self_attention.layer_norm)
            fill(layer.self_attention.linear[0], 3 * D, D)
            fill(layer.self_attention.linear[1], D, D)
            if hasattr(layer, "attention"):
                norm(layer.attention.layer_norm)
                fill(layer.attention.linear[0], D, D)
                fill(layer.attention.linear[1], 2 * D, D)
                fill(layer.attention.linear[2], D, D)
            norm(layer.ffn.layer_norm)
            fill(layer.ffn.linear_0, 2048, D)
            fill(layer.ffn.linear_1, D, 2048)
    fill(spec.decoder.projection, VOCAB, D)
    words = ["<blank>", "<s>", "</s>", "<unk>", *(f"w{i}" for i in range(4, VOCAB))]
    spec.register_source_vocabulary(words)
    spec.register_target_vocabulary(words)
    spec.validate()
    folder.mkdir()
    spec.save(str(folder))
