"""The sequence classifier: padding, masked positions, lengths, and that it learns."""

import pytest
import torch
from torch.nn.functional import cross_entropy

from asr.errors import DataError
from experiments.classifier import ClassifierConfig, SequenceClassifier, sample_mask

ATTENTIONS = {
    "full": {"kind": "full"},
    "linformer": {"kind": "linformer", "rank": 4, "length": 12},
}


def build(attention: str, vocab_size: int | None, n_classes: int = 3) -> SequenceClassifier:
    torch.manual_seed(0)
    model = {
        "d_model": 16, "d_inner": 32, "n_heads": 2, "norm": "pre", "dropout": 0.0,
        "projection": {"kind": "low_rank", "rank": 4},
        "encoder": {"n_layers": 2, "attention": ATTENTIONS[attention]},
    }  # fmt: skip
    values = {"n_classes": n_classes, "vocab_size": vocab_size, "model": model}
    return SequenceClassifier(ClassifierConfig.model_validate(values))


def draw(vocab_size: int | None, *shape: int) -> torch.Tensor:
    return torch.randint(vocab_size, shape) if vocab_size else torch.rand(shape)


@pytest.mark.parametrize("vocab_size", [9, None], ids=["tokens", "numbers"])
@pytest.mark.parametrize("attention", ATTENTIONS)
def test_padding_and_the_rest_of_the_batch_are_ignored(
    attention: str, vocab_size: int | None
) -> None:
    model = build(attention, vocab_size).eval()
    x_BS = draw(vocab_size, 3, 11)
    lengths = (4, 11, 7)
    mask_BS = torch.arange(11) < torch.tensor(lengths)[:, None]
    together_BC = model(x_BS, mask_BS)
    for i, n in enumerate(lengths):
        alone_1C = model(x_BS[i : i + 1, :n], torch.ones(1, n, dtype=torch.bool))
        torch.testing.assert_close(together_BC[i : i + 1], alone_1C, atol=1e-5, rtol=1e-5)
    changed_BS = x_BS.clone()
    changed_BS[:, 3] = (x_BS[:, 3] + 1) % 9 if vocab_size else x_BS[:, 3] + 1
    assert (model(changed_BS, mask_BS) - together_BC).abs().amin(1).gt(1e-5).all()


def test_masked_positions_are_not_seen_and_others_are() -> None:
    model = build("linformer", 9).eval()
    x_BS, mask_BS = draw(9, 2, 8), torch.ones(2, 8, dtype=torch.bool)
    masked_BS = torch.zeros_like(mask_BS)
    masked_BS[0, 2] = masked_BS[1, 5] = True
    logits_MV = model.reconstruct(x_BS, mask_BS, masked_BS)
    assert logits_MV.shape == (2, 9)
    other_BS = torch.where(masked_BS, (x_BS + 1) % 9, x_BS)
    torch.testing.assert_close(model.reconstruct(other_BS, mask_BS, masked_BS), logits_MV)
    other_BS = torch.where(masked_BS.roll(1, 1), (x_BS + 1) % 9, x_BS)
    assert not torch.allclose(model.reconstruct(other_BS, mask_BS, masked_BS), logits_MV)


def test_masked_positions_are_a_share_of_the_valid_ones_and_one_of_each_sequence() -> None:
    torch.manual_seed(0)
    mask_BS = torch.arange(2000) < torch.tensor([2000, 1000, 3])[:, None]
    masked_BS = sample_mask(mask_BS, 0.15)
    assert not (masked_BS & ~mask_BS).any()
    shares = masked_BS.sum(1) / mask_BS.sum(1)
    assert 0.12 < shares[0] < 0.18 and 0.11 < shares[1] < 0.19
    assert sample_mask(mask_BS, 0.0).sum(1).tolist() == [1, 1, 1]
    runs_BS = sample_mask(mask_BS, 0.15, run=5)
    assert not (runs_BS & ~mask_BS).any()
    edges = runs_BS[0, 1:] != runs_BS[0, :-1]
    assert len(set((edges.nonzero() % 5).flatten().tolist())) == 1  # whole runs


def test_too_long_sequences_are_refused() -> None:
    model = build("linformer", None)
    assert model.max_length == 11 and build("full", None).max_length is None
    with pytest.raises(DataError, match="12 positions are too many: the model takes 11"):
        model(torch.rand(1, 12), torch.ones(1, 12, dtype=torch.bool))


@pytest.mark.drawn(1)
@pytest.mark.parametrize("attention", ATTENTIONS)
def test_it_learns_the_token_farthest_from_cls(attention: str) -> None:
    """The class is the token at the last position."""
    model = build(attention, 3).train()
    adam = torch.optim.Adam(model.parameters(), 3e-3)
    mask_BS = torch.ones(32, 11, dtype=torch.bool)
    for _ in range(300):
        x_BS = draw(3, 32, 11)
        loss = cross_entropy(model(x_BS, mask_BS), x_BS[:, -1])
        adam.zero_grad()
        loss.backward()
        adam.step()
    x_BS = draw(3, 32, 11)
    assert (model(x_BS, mask_BS).argmax(1) == x_BS[:, -1]).float().mean() > 0.9
