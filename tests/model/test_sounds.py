"""The head of sounds: what it adds to CTC, what it leaves alone, and its ties."""

import pytest
import torch
from torch import Tensor, nn

from asr.model.factorization import apply_ranks
from asr.model.inference.int8 import in_8_bits
from asr.model.sounds import SoundsConfig, SoundsHead
from asr.model.transformer import SpeechTransformer
from tests.helpers import VOCAB, D, build, padded_batch, tiny


def with_sounds(layer: int = 1) -> SpeechTransformer:
    config = tiny(ctc=0.5)
    encoder = config.encoder.model_copy(update={"sounds": SoundsConfig(layer=layer)})
    return build(config.model_copy(update={"encoder": encoder}))


def plain_of(model: SpeechTransformer) -> SpeechTransformer:
    """The same network without the head."""
    encoder = model.config.encoder.model_copy(update={"sounds": None})
    plain = build(model.config.model_copy(update={"encoder": encoder}))
    assert not plain.load_state_dict(model.state_dict(), strict=False).missing_keys
    return plain


@torch.no_grad()
def test_a_model_in_8_bits_has_the_head_too() -> None:
    torch.manual_seed(2)
    head, x = SoundsHead(64, 2000), torch.randn(3, 40, 64)
    network = nn.ModuleDict({"sounds_head": head})
    expected = head(x)
    in_8_bits(network)
    assert not isinstance(head.output, nn.Linear)
    assert float((head(x) - expected).std() / expected.std()) < 0.05


def product_of(head: SoundsHead) -> Tensor:
    last = head.output
    return last.weight if isinstance(last, nn.Linear) else last.D.weight @ last.E.weight


def bias_of(head: SoundsHead) -> Tensor:
    return dict(head.output.named_parameters())[
        "bias" if isinstance(head.output, nn.Linear) else "D.bias"
    ]


@torch.no_grad()
def test_ctc_gets_the_scores_of_a_layer_below_and_the_decoder_nothing() -> None:
    model, seen = with_sounds(), list[Tensor]()
    assert model.sounds_head and model.ctc_head
    plain, (batch, frames, _) = plain_of(model), padded_batch([23, 12], 5.0)
    tokens = torch.tensor([[1, 5, 6]] * 2)
    model.encoder.layers[0].register_forward_hook(lambda *given: seen.append(given[2]))
    found, expected = model(batch, frames, tokens), plain(batch, frames, tokens)
    torch.testing.assert_close(found[0], expected[0])
    normal = nn.functional.layer_norm(
        seen[0], (D,), model.sounds_head.norm.weight, model.sounds_head.norm.bias
    )
    added = normal @ product_of(model.sounds_head).T + bias_of(model.sounds_head)
    torch.testing.assert_close(found[1], expected[1] + added)
    assert float(added.std()) > 0.1
    model.train()  # each is trained alone
    memory, _ = model.encode(batch, frames)
    assert torch.equal(model.ctc_logits(memory), model.ctc_head(memory[..., :D]))


@pytest.mark.parametrize("ranks", [{}, {"output": 3}])
@torch.no_grad()
def test_without_its_tie_the_head_scores_as_with_it(ranks: dict[str, int]) -> None:
    torch.manual_seed(1)
    head, x = SoundsHead(D, VOCAB), torch.randn(2, 5, D)
    apply_ranks(head, ranks)
    before, tied = head(x), torch.arange(VOCAB)
    torch.testing.assert_close(
        before, nn.functional.layer_norm(x, (D,)) @ product_of(head).T + bias_of(head)
    )
    tied[[4, 6]] = 2
    head.tie(tied, torch.tensor([0, 2, 5]))
    logits = head(x)
    for token in range(VOCAB):
        torch.testing.assert_close(logits[..., token], before[..., tied[token]])
    torch.testing.assert_close(head.of_units(x), before[..., [0, 2, 5]])
    free = SoundsHead(D, VOCAB)
    apply_ranks(free, ranks)
    free.load_state_dict(head.state_dict() | head.untied())
    torch.testing.assert_close(free(x), logits)
