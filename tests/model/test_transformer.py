"""Compare the network with torch's layers; test its invariances."""

import itertools
import math

import numpy as np
import pytest
import torch
from pydantic import ValidationError
from torch import Tensor, nn

from asr.model.attention.full import FullAttentionConfig
from asr.model.attention.linear import LinearAttentionConfig
from asr.model.convolution import Convolution
from asr.model.encoder import EncoderConfig, sinusoids
from asr.model.frontend import padding_mask
from asr.model.layers import DecoderLayer, EncoderLayer, MultiHeadAttention
from asr.model.projection import DenseConfig, LowRank, LowRankConfig
from asr.model.transformer import ModelConfig
from asr.model.unit import NormOrder
from asr.tokenizer import PAD
from tests.helpers import FREQS, HEADS, INNER, VOCAB, D, build, padded_batch, tiny


def test_a_led_of_full_rank_equals_a_dense_layer() -> None:
    dense = nn.Linear(12, 20)
    led = LowRank(12, 20, rank=12)
    u, s, vt = torch.linalg.svd(dense.weight.detach().double(), full_matrices=False)
    with torch.no_grad():
        led.E.weight.copy_(vt)
        led.D.weight.copy_(u * s)
        assert dense.bias is not None
        led.D.bias.copy_(dense.bias)
    x = torch.randn(3, 5, 12)
    torch.testing.assert_close(led(x), dense(x), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("rank", [1, 4, 16, 64])
def test_a_led_starts_with_the_variance_of_a_dense_layer_whatever_its_rank(rank: int) -> None:
    torch.manual_seed(0)
    x = torch.randn(500, 64)
    y = torch.stack([LowRankConfig(rank=rank).build(64, 64)(x).var() for _ in range(40)]).mean()
    reference = DenseConfig().build(64, 64)(x).var()
    assert y.item() == pytest.approx(reference.item(), rel=0.35)


def copy_attention(theirs: nn.MultiheadAttention, ours: MultiHeadAttention) -> None:
    for part, weight, bias in zip(
        (ours.query, ours.key, ours.value),
        theirs.in_proj_weight.chunk(3),
        theirs.in_proj_bias.chunk(3),
        strict=True,
    ):
        part.load_state_dict({"weight": weight, "bias": bias})
    ours.output.load_state_dict(theirs.out_proj.state_dict())


@pytest.mark.parametrize("norm", ["post", "pre"])
def test_the_dense_encoder_layer_equals_torchs(norm: NormOrder) -> None:
    torch.manual_seed(0)
    theirs = nn.TransformerEncoderLayer(
        D, HEADS, INNER, dropout=0.0, batch_first=True, norm_first=norm == "pre"
    ).eval()
    model = build(tiny(DenseConfig(), norm=norm))
    ours = model.encoder.layers[0]
    assert isinstance(ours, EncoderLayer)
    copy_attention(theirs.self_attn, ours.self_attention)
    ours.feed_forward.inner.load_state_dict(theirs.linear1.state_dict())
    ours.feed_forward.outer.load_state_dict(theirs.linear2.state_dict())
    ours.self_attention.residual.norm.load_state_dict(theirs.norm1.state_dict())
    ours.feed_forward.residual.norm.load_state_dict(theirs.norm2.state_dict())
    x, mask = torch.randn(3, 7, D), padding_mask(torch.tensor([7, 4, 1]), 7)
    expected = theirs(x, src_key_padding_mask=~mask)
    torch.testing.assert_close(ours(x, mask)[mask], expected[mask], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("norm", ["post", "pre"])
def test_the_dense_decoder_layer_equals_torchs(norm: NormOrder) -> None:
    torch.manual_seed(0)
    theirs = nn.TransformerDecoderLayer(
        D, HEADS, INNER, dropout=0.0, batch_first=True, norm_first=norm == "pre"
    ).eval()
    ours = build(tiny(DenseConfig(), norm=norm)).decoder.layers[0]
    assert isinstance(ours, DecoderLayer)
    copy_attention(theirs.self_attn, ours.self_attention)
    copy_attention(theirs.multihead_attn, ours.cross_attention)
    ours.feed_forward.inner.load_state_dict(theirs.linear1.state_dict())
    ours.feed_forward.outer.load_state_dict(theirs.linear2.state_dict())
    ours.self_attention.residual.norm.load_state_dict(theirs.norm1.state_dict())
    ours.cross_attention.residual.norm.load_state_dict(theirs.norm2.state_dict())
    ours.feed_forward.residual.norm.load_state_dict(theirs.norm3.state_dict())
    x, memory = torch.randn(2, 5, D), torch.randn(2, 9, D)
    mask = padding_mask(torch.tensor([9, 6]), 9)
    causal = nn.Transformer.generate_square_subsequent_mask(5)
    expected = theirs(x, memory, tgt_mask=causal, memory_key_padding_mask=~mask)
    torch.testing.assert_close(ours(x, memory, mask), expected, atol=1e-5, rtol=1e-5)


def test_positions_are_the_papers_sines_and_cosines() -> None:
    d = 6
    expected = [
        [(math.sin if i % 2 == 0 else math.cos)(pos / 10000 ** ((i - i % 2) / d)) for i in range(d)]
        for pos in range(3, 8)
    ]
    found = sinusoids(3, 5, d, torch.device("cpu"))
    torch.testing.assert_close(found, torch.tensor(expected), atol=1e-6, rtol=1e-6)


def convolve(x: np.ndarray, weight: np.ndarray, bias: np.ndarray) -> np.ndarray:
    """Convolve (C, T, F) with 3×3 by definition, in float64, with zero padding."""
    padded = np.pad(x, ((0, 0), (1, 1), (1, 1)))
    out = np.tile(bias[:, None, None], (1, *x.shape[1:])).astype(np.float64)
    for dt, df in itertools.product(range(3), range(3)):
        window = padded[:, dt : dt + x.shape[1], df : df + x.shape[2]]
        out += np.einsum("oc,ctf->otf", weight[:, :, dt, df], window)
    return np.maximum(out, 0)


def test_the_front_end_equals_its_definition_in_float64() -> None:
    front = build(tiny()).frontend
    feats = torch.randn(1, 13, FREQS)
    x = feats.double().numpy()
    for block in (front.block1, front.block2):
        for conv in (block.conv1, block.conv2):
            assert conv.bias is not None
            weight, bias = (p.detach().double().numpy() for p in (conv.weight, conv.bias))
            x = convolve(x, weight, bias)
        c, t, f = x.shape[0], x.shape[1] // 2, x.shape[2] // 2
        x = x[:, : 2 * t, : 2 * f].reshape(c, t, 2, f, 2).max(axis=(2, 4))
    merged = torch.from_numpy(x.transpose(1, 2, 0).reshape(x.shape[1], -1)).float()
    expected = front.norm(front.project(merged))
    found, steps = front(feats, torch.tensor([13]))
    assert steps.tolist() == [3]
    torch.testing.assert_close(found[0], expected, atol=1e-4, rtol=1e-4)


def test_the_convolution_of_a_layer_equals_its_definition_in_float64() -> None:
    unit = build(tiny(DenseConfig(), convolution=5)).encoder.layers[0].convolution
    assert isinstance(unit, Convolution) and unit.depthwise.bias is not None
    x = torch.randn(1, 7, D)

    def weight(parameter: Tensor) -> np.ndarray:
        return parameter.detach().double().numpy()

    def sigmoid(z: np.ndarray) -> np.ndarray:
        return 1 / (1 + np.exp(-z))

    def layer_norm(z: np.ndarray, norm: nn.LayerNorm) -> np.ndarray:
        z = (z - z.mean(-1, keepdims=True)) / np.sqrt(z.var(-1, keepdims=True) + norm.eps)
        return z * weight(norm.weight) + weight(norm.bias)

    x0 = weight(x[0])
    inner = x0 @ weight(unit.inner.weight).T + weight(unit.inner.bias)
    padded = np.pad(inner[:, :D] * sigmoid(inner[:, D:]), ((2, 2), (0, 0)))
    kernel = weight(unit.depthwise.weight)[:, 0]
    mixed = np.stack([(padded[t : t + 5] * kernel.T).sum(0) for t in range(7)])
    mixed = layer_norm(mixed + weight(unit.depthwise.bias), unit.norm)
    branch = mixed * sigmoid(mixed) @ weight(unit.outer.weight).T + weight(unit.outer.bias)
    expected = torch.from_numpy(layer_norm(x0 + branch, unit.residual.norm)).float()
    found = unit(x, torch.ones(1, 7, dtype=torch.bool))
    torch.testing.assert_close(found[0], expected, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("convolution", [None, 7])
@pytest.mark.parametrize("noise", [0.0, 100.0])
def test_padding_never_changes_an_encoding_whatever_its_values(
    noise: float, convolution: int | None
) -> None:
    model = build(tiny(convolution=convolution))
    batch, lengths, alone = padded_batch([23, 8, 31, 5], noise)
    memory, mask = model.encode(batch, lengths)
    for i, feats in enumerate(alone):
        expected, _ = model.encode(feats[None], lengths[i : i + 1])
        assert mask[i].sum() == len(feats) // 4
        torch.testing.assert_close(memory[i][mask[i]], expected[0], atol=1e-5, rtol=1e-5)


def test_logits_do_not_depend_on_later_tokens_or_on_padding() -> None:
    model = build(tiny(ctc=0.3))
    batch, lengths, alone = padded_batch([23, 12], 5.0)
    tokens = torch.randint(4, VOCAB, (2, 6))
    logits, ctc, mask = model(batch, lengths, tokens)
    assert ctc is not None
    changed = tokens.clone()
    changed[:, 4:] = 7
    torch.testing.assert_close(model(batch, lengths, changed)[0][:, :4], logits[:, :4])
    one, one_ctc, _ = model(alone[1][None], lengths[1:], tokens[1:, :3])
    torch.testing.assert_close(one[0], logits[1, :3], atol=1e-5, rtol=1e-5)
    assert one_ctc is not None
    torch.testing.assert_close(one_ctc[0], ctc[1][mask[1]], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("norm", ["post", "pre"])
def test_cached_steps_equal_the_decoder_run_at_once_also_when_reordered(norm: NormOrder) -> None:
    model = build(tiny(norm=norm))
    batch, lengths, _ = padded_batch([23, 12, 17], 5.0)
    memory, mask = model.encode(batch, lengths)
    W, rng = 3, torch.Generator().manual_seed(1)
    state = model.decoder.start(memory, mask)
    history = torch.zeros(3, W, 0, dtype=torch.long)
    for step in range(5):
        tokens = torch.randint(1, VOCAB, (3, W), generator=rng)
        history = torch.cat((history, tokens[..., None]), dim=2)
        found = model.decoder.step(tokens, state)
        for w in range(W):
            logits = model.decoder(history[:, w], memory, mask)[:, -1]
            torch.testing.assert_close(found[:, w], logits.log_softmax(-1), atol=1e-5, rtol=1e-5)
        parents = torch.randint(0, W, (3, W), generator=rng)
        state.reorder(parents)
        history = history.gather(1, parents[..., None].expand_as(history))
        if step == 2:  # an utterance leaves
            rest = torch.tensor([0, 2])
            state.select(rest)
            memory, mask, history = memory[rest], mask[rest], history[rest]
            tokens = torch.randint(1, VOCAB, (2, W), generator=rng)
            break
    found = model.decoder.step(tokens, state)
    full = torch.cat((history, tokens[..., None]), dim=2)
    logits = model.decoder(full[:, 1], memory, mask)[:, -1]
    torch.testing.assert_close(found[:, 1], logits.log_softmax(-1), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("attention", [FullAttentionConfig(), LinearAttentionConfig(kind="linear")])
def test_known_texts_are_scored_in_one_pass_as_token_by_token(attention) -> None:
    config = tiny()
    decoder = config.decoder.model_copy(update={"attention": attention})
    model = build(config.model_copy(update={"decoder": decoder}))
    memory, mask = model.encode(*padded_batch([23, 12], 5.0)[:2])
    texts = torch.randint(1, VOCAB, (2, 3, 7), generator=torch.Generator().manual_seed(1))
    texts[0, 1, 4:] = PAD  # a shorter text
    found = model.decoder.log_probs(texts, memory, mask)
    state = model.decoder.start(memory, mask)
    for u in range(6):
        wanted = model.decoder.step(texts[..., u], state).gather(2, texts[..., u + 1, None])
        torch.testing.assert_close(found[..., u], wanted.squeeze(2), atol=1e-5, rtol=1e-5)


def test_the_gradients_of_padding_are_zero() -> None:
    model = build(tiny())
    batch, lengths, _ = padded_batch([23, 8], 1.0)
    batch.requires_grad_(True)
    memory, mask = model.encode(batch, lengths)
    memory[mask].sum().backward()
    assert batch.grad is not None
    assert batch.grad[1, :8].abs().sum() > 0
    assert batch.grad[1, 8:].abs().max() == 0


def test_impossible_sizes_are_refused_with_their_numbers() -> None:
    with pytest.raises(ValidationError, match=r"d_model 30 .* n_heads 4"):
        ModelConfig(d_model=30, n_heads=4, projection=DenseConfig())
    with pytest.raises(ValidationError, match=r"rank 600 .* 512"):
        ModelConfig(projection=LowRankConfig(rank=600))
    with pytest.raises(ValidationError, match="4 steps have no middle: make it 5"):
        EncoderConfig(convolution=4)
