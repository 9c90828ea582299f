"""Compare the decoder's inference form with the trained decoder, all positions at once."""

import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from asr.errors import ConfigError
from asr.model.inference.decoder import FastDecoder, for_inference
from asr.model.inference.trie import tries_of
from asr.model.projection import DenseConfig, LowRankConfig
from asr.model.transformer import SpeechTransformer
from asr.model.unit import NormOrder
from asr.tokenizer import EOS, PAD, SOS
from tests.helpers import FREQS, VOCAB, padded_batch, tiny

# With heads of size 4: latent attention (3), D × D products multiplied out (9), all products (16);
# with heads of size 2: LEDs with full keys (5).
PROJECTIONS = [
    (DenseConfig(), 4),
    (LowRankConfig(rank=3), 4),
    (LowRankConfig(rank=9), 4),
    (LowRankConfig(rank=16), 4),
    (LowRankConfig(rank=5), 8),
]


def build(projection: DenseConfig | LowRankConfig, n_heads: int = 4, norm: NormOrder = "post"):
    torch.manual_seed(0)
    config = tiny(projection, norm=norm).model_copy(update={"n_heads": n_heads})
    model = config.build(FREQS, VOCAB).eval()
    for parameter in model.parameters():  # no bias or gain may hide by being zero or one
        nn.init.normal_(parameter, std=0.3)
    return model


def expected(model: SpeechTransformer, history: Tensor, memory: Tensor, mask: Tensor) -> Tensor:
    """Return log-probabilities (B, W, V) after each history (B, W, U), by the training path."""
    rows = [model.decoder(history[:, w], memory, mask)[:, -1] for w in range(history.shape[1])]
    return torch.stack(rows, 1).log_softmax(-1)


@pytest.mark.parametrize("norm", ["post", "pre"])
@pytest.mark.parametrize(("projection", "n_heads"), PROJECTIONS)
def test_fast_steps_equal_the_decoder_run_at_once_reordered_and_with_leavers(
    projection: DenseConfig | LowRankConfig, n_heads: int, norm: NormOrder
) -> None:
    model = build(projection, n_heads, norm)
    batch, lengths, _ = padded_batch([23, 12, 17], 5.0)
    memory, mask = model.encode(batch, lengths)
    decoder, W, rng = for_inference(model.decoder), 3, torch.Generator().manual_seed(1)
    assert isinstance(decoder, FastDecoder)
    with torch.inference_mode():
        state = decoder.start(memory, mask)
        history = torch.zeros(3, W, 0, dtype=torch.long)
        for step in range(36):  # beyond the buffers' first size
            tokens = torch.randint(1, VOCAB, (len(mask), W), generator=rng)
            history = torch.cat((history, tokens[..., None]), dim=2)
            found = decoder.step(tokens, state)
            if step in (0, 1, 4, 5, 35):
                wanted = expected(model, history, memory, mask)
                torch.testing.assert_close(found, wanted, atol=1e-5, rtol=1e-5)
            if step == 4:  # an utterance leaves
                rest = torch.tensor([0, 2])
                state.select(rest)
                memory, mask, history = memory[rest], mask[rest], history[rest]
            parents = torch.randint(0, W, (len(mask), W), generator=rng)
            state.reorder(parents)
            history = history.gather(1, parents[..., None].expand_as(history))


def some_texts(seed: int, B: int, W: int) -> Tensor:
    """Texts (B, W, U) of few letters, so that some begin alike and some are the same twice."""
    rng = random.Random(seed)
    rows = [[rng.randint(4, 6) for _ in range(rng.randint(0, 6))] for _ in range(B * W)]
    padded = [[SOS, *row, EOS, *[PAD] * (6 - len(row))] for row in rows]
    return torch.tensor(padded).view(B, W, 8)


def prefixes(texts: list[list[int]]) -> set[tuple[int, ...]]:
    """All that begins one of these texts with its SOS, without its EOS."""
    return {tuple(t[:u]) for t in texts for u in range(1, t.index(EOS) + 1)}


@pytest.mark.parametrize("norm", ["post", "pre"])
@pytest.mark.parametrize(("projection", "n_heads"), PROJECTIONS)
@torch.inference_mode()
def test_known_texts_are_scored_as_by_the_trained_decoder_each_prefix_once(
    monkeypatch, projection: DenseConfig | LowRankConfig, n_heads: int, norm: NormOrder
) -> None:
    model = build(projection, n_heads, norm)
    memory, mask = model.encode(*padded_batch([23, 12, 17], 5.0)[:2])
    fast, computed = FastDecoder(model.decoder), []
    hidden_of = FastDecoder._hidden_of

    def counting(self, tokens_BW, *rest):
        computed.append(tokens_BW.shape)
        return hidden_of(self, tokens_BW, *rest)

    monkeypatch.setattr(FastDecoder, "_hidden_of", counting)
    for seed, W in enumerate((1, 3, 8)):
        texts = some_texts(seed, 3, W)
        found = fast.log_probs(texts, memory, mask)
        wanted = model.decoder.log_probs(texts, memory, mask)
        is_text = texts[..., 1:] != PAD
        torch.testing.assert_close(found[is_text], wanted[is_text], atol=1e-5, rtol=1e-5)
        assert computed[seed] == (3, max(len(prefixes(rows)) for rows in texts.tolist()))
    # In 8 bits a text's numbers would depend on the other texts.
    eight = FastDecoder(model.decoder, int8=True).log_probs(texts, memory, mask)
    assert torch.equal(eight, wanted) and len(computed) == 3


@given(st.integers(0, 10**6), st.integers(1, 3), st.integers(1, 5))
@settings(max_examples=50, deadline=None)
def test_a_trie_has_each_prefix_once_and_attends_to_what_begins_it(
    seed: int, B: int, W: int
) -> None:
    texts = some_texts(seed, B, W)
    tries = tries_of(texts[..., :-1])
    assert tries.mask_BNN.isfinite().any(2).all()  # also of padding
    for b, rows in enumerate(texts.tolist()):
        of_node = {}
        for nodes, text in zip(tries.nodes_BWU[b].tolist(), rows, strict=True):
            for u in range(1, text.index(EOS) + 1):
                assert of_node.setdefault(nodes[u - 1], tuple(text[:u])) == tuple(text[:u])
        assert set(of_node.values()) == prefixes(rows) and len(of_node) == len(prefixes(rows))
        for node, prefix in of_node.items():
            assert tries.tokens_BN[b, node] == prefix[-1]
            assert tries.depths_BN[b, node] == len(prefix) - 1
            seen = {i for i, value in enumerate(tries.mask_BNN[b, node].tolist()) if value == 0}
            assert {of_node[i] for i in seen} == {prefix[:u] for u in range(1, len(prefix) + 1)}


def test_maps_of_one_input_are_one_product() -> None:
    torch.manual_seed(0)
    from asr.model.inference.linear import Scratch, compile_maps

    wide, thin = nn.Linear(7, 1300), nn.Linear(7, 3)
    x = torch.randn(5, 7)
    with torch.inference_mode():
        found = compile_maps([wide, thin])(x, Scratch(x), "y")
        torch.testing.assert_close(found, torch.cat((wide(x), thin(x)), 1), atol=1e-5, rtol=1e-5)


def test_int8_is_near_and_is_not_float32() -> None:
    from asr.model.inference.linear import Scratch, compile_maps

    torch.manual_seed(0)
    linear = nn.Linear(512, 700)
    x = torch.randn(9, 512)
    with torch.inference_mode():
        found, exact = compile_maps([linear], int8=True)(x, Scratch(x), "y"), linear(x)
    error = (found - exact).abs().max() / exact.abs().max()
    assert 1e-5 < error < 0.03


def test_int8_without_fbgemm_has_another_engine_or_is_refused(monkeypatch) -> None:
    from asr.model.inference import linear as products

    torch.manual_seed(0)
    linear, x = nn.Linear(512, 700), torch.randn(9, 512)
    with torch.inference_mode():
        usual = products.compile_maps([linear], int8=True)(x, products.Scratch(x), "y")
        monkeypatch.setattr(products, "_INT8_ENGINES", ("no such", "qnnpack"))  # as on ARM
        found = products.compile_maps([linear], int8=True)(x, products.Scratch(x), "y")
        assert torch.backends.quantized.engine == "qnnpack"
        assert (found - usual).abs().max() < 0.03 * usual.abs().max()
        monkeypatch.setattr(products, "_INT8_ENGINES", ("no such",))
        with pytest.raises(ConfigError, match="leave --int8 out"):
            products.compile_maps([linear], int8=True)


def test_the_fast_decoder_has_the_trained_ones_weights_under_the_same_names() -> None:
    model = build(LowRankConfig(rank=3))
    fast = for_inference(model.decoder)
    assert fast.state_dict().keys() == model.decoder.state_dict().keys()
    assert all(a is b for a, b in zip(fast.parameters(), model.decoder.parameters(), strict=True))
