"""A second CTC head, of the sounds of tokens, on an encoder layer below the last.

What a word sounds like is learned from all words that share its syllables; how it is written is
learned from its own characters alone. The layers above learn the words of training, so a lower
layer knows the syllables of new words better.

Legend: B batch, S encoder steps, D d_model, V vocabulary, N units.
"""

from pydantic import PositiveFloat, PositiveInt
from torch import Tensor, nn
from torch.nn.functional import linear

from asr.model.projection import LowRank
from asr.schema import FrozenModel


class SoundsConfig(FrozenModel):
    """A CTC head of syllables on an encoder layer, whose scores decoding adds to those of tokens.

    `layer` counts from 1. `weight` is that of its loss in training, relative to the CTC loss of
    tokens (intermediate CTC; Lee and Watanabe 2021, eq. 7).
    """

    layer: PositiveInt
    weight: PositiveFloat = 0.7


class SoundsHead(nn.Module):
    """Scores each token by its sound: tokens that sound alike have equal rows.

    Training alone knows which tokens these are, and keeps their rows equal (`tie`).
    """

    tied_V: Tensor | None
    units_N: Tensor | None

    def __init__(self, d_model: int, vocab_size: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(d_model)
        self.output: nn.Module = nn.Linear(d_model, vocab_size)
        self.register_buffer("tied_V", None, persistent=False)
        self.register_buffer("units_N", None, persistent=False)

    def tie(self, tied_V: Tensor, units_N: Tensor) -> None:
        """Let token v have the row of token `tied_V[v]`, and unit n that of token `units_N[n]`."""
        device = self.norm.weight.device
        self.tied_V, self.units_N = tied_V.to(device), units_N.to(device)

    @property
    def rows_VD(self) -> Tensor:
        """Return the rows of tokens, as they are stored."""
        last, _ = self._rows()
        return last.weight.detach()

    def untied(self) -> dict[str, Tensor]:
        """Return weights by name with an own row for each token, so that they need no tie."""
        last, name = self._rows()
        rows = slice(None) if self.tied_V is None else self.tied_V
        return {f"{name}.{k}": weight[rows].detach() for k, weight in last.named_parameters()}

    def forward(self, x_BSD: Tensor) -> Tensor:
        """Map the layer's output (B, S, D) to logits of tokens (B, S, V)."""
        return self._logits(x_BSD, self.tied_V)

    def of_units(self, x_BSD: Tensor) -> Tensor:
        """Map the layer's output (B, S, D) to logits of units (B, S, N)."""
        return self._logits(x_BSD, self.units_N)

    def _logits(self, x_BSD: Tensor, rows: Tensor | None) -> Tensor:
        x_BSD = self.norm(x_BSD)
        if rows is None:  # the map may have 8-bit weights
            y_BSV: Tensor = self.output(x_BSD)
            return y_BSV
        if isinstance(self.output, LowRank):
            x_BSD = self.output.E(x_BSD)
        last, _ = self._rows()
        return linear(x_BSD, last.weight[rows], last.bias[rows])

    def _rows(self) -> tuple[nn.Linear, str]:
        """Return the map whose rows are those of tokens, and its name."""
        if isinstance(self.output, LowRank):  # compressed
            return self.output.D, "output.D"
        assert isinstance(self.output, nn.Linear)
        return self.output, "output"
