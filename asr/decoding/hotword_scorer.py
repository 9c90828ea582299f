"""Score the hotwords in hypotheses that grow token by token, all of a batch at once.

Legend: B utterances, W hypotheses of each, V vocabulary, K candidates.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from asr.decoding.hotwords import Hotword
from asr.decoding.phrase_trie import PhraseTrie, State
from asr.normalization import HAN_LETTER
from asr.tokenizer import UNK, Tokenizer

_MOST_NAMED = 10  # skipped phrases that a warning names


@dataclass(frozen=True)
class Hotwords:
    """Hotwords as tokens; `trie` is None where there are none, `warning` names the skipped ones."""

    trie: PhraseTrie | None = None
    warning: str | None = None

    @classmethod
    def of(cls, hotwords: tuple[Hotword, ...], weight: float, tokenizer: Tokenizer) -> "Hotwords":
        """Return the hotwords as tokens; `weight` is for those that have none of their own."""
        phrases, skipped = [], []
        for phrase, own in hotwords:
            tokens = tokenizer.encode(phrase)
            is_han = HAN_LETTER.match(tokenizer.normalize(phrase))
            within = tokenizer.within(phrase) if is_han else tokens
            if not tokens or UNK in tokens:
                skipped.append(phrase)
                continue
            # `tokens` begin a text, `within` follow a character. Where only a token of a space in
            # front is different, `within` is a part of `tokens` and matches in both places.
            forms = [within] if within in (tokens, tokens[1:]) else [tokens, within]
            phrases += [(form, weight if own is None else own) for form in forms]
        return cls(PhraseTrie(phrases) if phrases else None, _warning(skipped, tokenizer))


def _warning(skipped: list[str], tokenizer: Tokenizer) -> str | None:
    if not skipped:
        return None
    named = ", ".join(skipped[:_MOST_NAMED])
    more = f" and {len(skipped) - _MOST_NAMED} more" if len(skipped) > _MOST_NAMED else ""
    unknown = "".join(sorted(tokenizer.unknown(skipped))[:50]) or "none but punctuation"
    return (
        f"hotwords {named}{more} are skipped: the model cannot write their characters ({unknown})"
    )


class HotwordScorer:
    """What hotwords add to W hypotheses of each of B utterances, all empty at first.

    `like_BW` is any tensor of these sizes, on the device of the results.
    """

    def __init__(self, trie: PhraseTrie, n_tokens: int, like_BW: Tensor) -> None:
        self._trie, device = trie, like_BW.device
        tokens, values = zip(*trie.first(), strict=True)
        self._first_V = torch.zeros(n_tokens, device=device)
        self._first_V[torch.tensor(tokens, device=device)] = torch.tensor(values, device=device)
        self._states = [[trie.start()] * like_BW.shape[1] for _ in like_BW]
        self._bonus_BWV: Tensor | None = None
        self._of_state: dict[State, tuple[Tensor, Tensor]] = {}

    def bonuses(self) -> Tensor:
        """Return what each token adds to each hypothesis (B, W, V); EOS takes back open matches."""
        if self._bonus_BWV is None:
            device = self._first_V.device
            added_BW = torch.tensor([[s.added for s in row] for row in self._states], device=device)
            self._bonus_BWV = self._first_V - added_BW[..., None]
            for bonus_WV, row in zip(self._bonus_BWV, self._states, strict=True):
                for bonus_V, state in zip(bonus_WV, row, strict=True):
                    if state.matches:
                        tokens, values = self._following(state)
                        bonus_V[tokens] = values
        return self._bonus_BWV

    def _following(self, state: State) -> tuple[Tensor, Tensor]:
        """Return the tokens that continue matches, and what each adds; both are kept by state."""
        found = self._of_state.get(state)
        if found is None:
            tokens, values = zip(*self._trie.following(state), strict=True)
            device = self._first_V.device
            found = torch.tensor(tokens, device=device), torch.tensor(values, device=device)
            self._of_state[state] = found
        return found

    @property
    def rest_BW(self) -> Tensor:
        """Return what the running matches can still add to each hypothesis (B, W)."""
        rest = [[state.rest for state in row] for row in self._states]
        return torch.tensor(rest, device=self._first_V.device)

    def advance(self, parents_BW: Tensor, tokens_BW: Tensor) -> None:
        """Let hypothesis w be hypothesis `parents_BW[b, w]` with `tokens_BW[b, w]` appended."""
        score, self._bonus_BWV = self._trie.score, None
        self._states = [
            [score(row[parent], token)[1] for parent, token in zip(parents, tokens, strict=True)]
            for row, parents, tokens in zip(
                self._states, parents_BW.tolist(), tokens_BW.tolist(), strict=True
            )
        ]

    def select(self, indices: Tensor) -> None:
        """Keep these utterances only."""
        self._bonus_BWV, states = None, self._states
        self._states = [states[i] for i in indices.tolist()]
