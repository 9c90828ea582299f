"""Build the same networks as anyone would write them with torch.nn, to compare with.

They have a VGG of `nn.Conv2d` in the default layout, the layers of `nn.Transformer`, and
`nn.Dropout`. With a rank, every linear map except embedding and output is a pair of `nn.Linear`.
"""

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

from asr.model.encoder import sinusoids

D_MODEL, D_INNER, HEADS, DROPOUT = 512, 2048, 8, 0.1


def linear(d_in: int, d_out: int, rank: int | None) -> nn.Module:
    """Return a dense map, or a pair of maps of low rank."""
    if rank is None:
        return nn.Linear(d_in, d_out)
    return nn.Sequential(nn.Linear(d_in, rank, bias=False), nn.Linear(rank, d_out))


class LowRankAttention(nn.Module):
    """A replacement of `nn.MultiheadAttention` with low-rank pairs for projections."""

    batch_first = True

    def __init__(self, rank: int) -> None:
        super().__init__()
        self.maps = nn.ModuleList(linear(D_MODEL, D_MODEL, rank) for _ in range(4))

    def forward(
        self, query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None,
        key_padding_mask: Tensor | None = None, **_: object,
    ) -> tuple[Tensor, None]:  # fmt: skip
        """Attend (B, T, D) to (B, T, D); the second item replaces the attention weights."""
        q, k, v = (
            project(x).unflatten(-1, (HEADS, -1)).transpose(1, 2)
            for project, x in zip(self.maps, (query, key, value), strict=False)
        )
        mask = attn_mask if key_padding_mask is None else key_padding_mask[:, None, None, :]
        p = DROPOUT if self.training else 0.0
        heads = scaled_dot_product_attention(q, k, v, attn_mask=mask, dropout_p=p)
        return self.maps[3](heads.transpose(1, 2).flatten(2)), None


class PlainModel(nn.Module):
    """A recognizer from spectrogram (B, T, F) and tokens (B, U) to logits (B, U, V)."""

    def __init__(self, n_freqs: int, vocab_size: int, rank: int | None) -> None:
        super().__init__()
        self.vgg = nn.Sequential(
            nn.Conv2d(1, 64, 3, padding=1), nn.ReLU(), nn.Conv2d(64, 64, 3, padding=1), nn.ReLU(),
            nn.MaxPool2d(2), nn.Conv2d(64, 128, 3, padding=1), nn.ReLU(),
            nn.Conv2d(128, 128, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        )  # fmt: skip
        self.project = linear(n_freqs // 4 * 128, D_MODEL, rank)
        self.norm = nn.LayerNorm(D_MODEL)
        encoder = nn.TransformerEncoderLayer(D_MODEL, HEADS, D_INNER, DROPOUT, batch_first=True)
        decoder = nn.TransformerDecoderLayer(D_MODEL, HEADS, D_INNER, DROPOUT, batch_first=True)
        self.encoder = nn.TransformerEncoder(encoder, 2, enable_nested_tensor=False)
        self.decoder = nn.TransformerDecoder(decoder, 4)
        if rank is not None:
            for layer in [*self.encoder.layers, *self.decoder.layers]:
                _factorize(layer, rank)
        self.embed = nn.Embedding(vocab_size, D_MODEL)
        self.dropout = nn.Dropout(DROPOUT)
        self.output = nn.Linear(D_MODEL, vocab_size)

    def forward(self, feats_BTF: Tensor, lengths_B: Tensor, tokens_BU: Tensor) -> Tensor:
        """Return the logits (B, U, V) of the token after each token."""
        x_BSD = self.norm(self.project(self.vgg(feats_BTF[:, None]).transpose(1, 2).flatten(2)))
        steps_S = torch.arange(x_BSD.shape[1])
        padding_BS = steps_S >= (lengths_B // 4)[:, None]
        x_BSD = self.encoder(self._place(x_BSD), src_key_padding_mask=padding_BS)
        ahead_UU = torch.ones(2 * tokens_BU.shape[1:], dtype=torch.bool).triu(1)
        later_UU = torch.zeros(ahead_UU.shape).masked_fill(ahead_UU, float("-inf"))
        y_BUD = self.decoder(
            self._place(self.embed(tokens_BU) * D_MODEL**0.5), x_BSD, tgt_mask=later_UU,
            memory_key_padding_mask=torch.zeros(padding_BS.shape).masked_fill(
                padding_BS, float("-inf")
            ),
        )  # fmt: skip
        logits_BUV: Tensor = self.output(y_BUD)
        return logits_BUV

    def _place(self, x_BTD: Tensor) -> Tensor:
        placed_BTD: Tensor = self.dropout(
            x_BTD + sinusoids(0, x_BTD.shape[1], D_MODEL, x_BTD.device)
        )
        return placed_BTD


def _factorize(layer: nn.Module, rank: int) -> None:
    """Replace a Transformer layer's dense projections by low-rank pairs."""
    for name, module in list(layer.named_children()):
        if isinstance(module, nn.MultiheadAttention):
            setattr(layer, name, LowRankAttention(rank))
        elif isinstance(module, nn.Linear):
            setattr(layer, name, linear(module.in_features, module.out_features, rank))
