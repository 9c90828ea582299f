"""Measure how much sooner one utterance's best text is found by speculation (joint search).

    python -m benchmarks.speculation [--rounds 7] [--record]

The papers' decoder (LRT, r = 50, 4 layers, vocabulary 4364) with random weights, 112 encoder steps,
beam 8, texts of 24 tokens, on one CPU thread. Random weights know no text, so a text is drawn, and
its token at each position is made likely in the output of the CTC head and of the decoder. At a
share of the positions the decoder is unsure between eight tokens. The search does not know this.
Both searches take turns in one process. A number is the median of CPU times, or of the ratios of
neighboring turns, over several texts. Both must find the same text and score.
"""

import argparse
import time
from collections.abc import Callable
from functools import partial
from statistics import median

import torch
from torch import Tensor

from asr.decoding.decode import Encoded, SpeechDecoder
from asr.decoding.hypothesis import Hypothesis
from asr.decoding.options import DecodingOptions
from asr.model.inference.decoder import FastDecoder, FastState
from asr.model.projection import LowRankConfig
from asr.model.transformer import ModelConfig
from asr.tokenizer import EOS, SPECIAL
from benchmarks import record
from benchmarks.engines import BEAM, STEPS, TOKENS, VOCAB, D
from benchmarks.record import Result, Value

SHARES = (0.0, 0.05, 0.1, 0.2, 0.5)
_TEXTS = 5
_OPTIONS = DecodingOptions(beam_size=BEAM, ctc_weight=0.3, n_best=1)


class InformedDecoder(FastDecoder):
    """A decoder with random weights; `likely_UV` is added to its logits at each position."""

    likely_UV: Tensor

    def step(self, tokens_BW: Tensor, state: FastState) -> Tensor:  # type: ignore[override]
        """Return log-probabilities (B, W, V) of the next token."""
        logp_BWV = super().step(tokens_BW, state)
        return (logp_BWV + self.likely_UV[state.position - 1]).log_softmax(-1)

    def expand(self, tokens: list[int], depths: list[int], state: FastState) -> Tensor:
        """Return logits (N, V) after nodes of a tree."""
        return super().expand(tokens, depths, state) + self.likely_UV[depths]


class Words:
    """Stand in for a tokenizer: each token is a word."""

    def word_counts(self) -> list[int]:
        """Return 1 for each token."""
        return [1] * VOCAB

    def decode(self, tokens: tuple[int, ...]) -> str:
        """Return the numbers of the tokens."""
        return " ".join(map(str, tokens))


def informed(text: Tensor, unsure: float) -> Tensor:
    """Return what is added to the logits (U, V): the text, blurred at a share of its positions."""
    likely_UV = torch.zeros(STEPS + 2, VOCAB)
    likely_UV[:TOKENS].scatter_(1, text[:, None], 16.0)
    likely_UV[TOKENS:, EOS] = 16.0
    for position in torch.randperm(TOKENS)[: round(unsure * TOKENS)].tolist():
        rivals = torch.randint(len(SPECIAL), VOCAB, (7,))
        likely_UV[position, rivals] = 16.0 - torch.rand(7)
    return likely_UV


def encoded(text: Tensor, steps: int = STEPS) -> Encoded:
    """Return a random encoder output, whose CTC head spells the text with blanks between."""
    logits_SV = torch.randn(steps, VOCAB)
    logits_SV[:, 0] = 15.0
    at = torch.arange(TOKENS) * (steps // TOKENS)
    logits_SV[at] = torch.randn(TOKENS, VOCAB).scatter(1, text[:, None], 16.0)
    mask = torch.ones(1, steps, dtype=torch.bool)
    return Encoded(torch.randn(1, steps, D), mask, logits_SV.log_softmax(-1)[None])


def build() -> tuple[SpeechDecoder, InformedDecoder]:
    """Return a recognizer's decoding with the papers' decoder."""
    model = ModelConfig(projection=LowRankConfig(rank=50), ctc_weight=0.3).build(161, VOCAB).eval()
    decoder = InformedDecoder(model.decoder)
    model.decoder = decoder
    return SpeechDecoder(model, Words()), decoder  # type: ignore[arg-type]


def timed(run: Callable[[], list[list[Hypothesis]]]) -> tuple[float, Hypothesis]:
    """Return CPU seconds and the best hypothesis."""
    start = time.process_time()
    found = run()
    return time.process_time() - start, found[0][0]


def measure(unsure: float, rounds: int) -> list[Value]:
    """Return a row: the share, the milliseconds of both searches, and their ratio."""
    recognizer, decoder = build()
    plain_ms, fast_ms, ratios = [], [], []
    for _ in range(_TEXTS):
        text = torch.randperm(VOCAB - len(SPECIAL))[:TOKENS] + len(SPECIAL)
        decoder.likely_UV, given = informed(text, unsure), encoded(text)
        for turn in range(rounds + 1):
            recognizer.speculates = True
            fast, found = timed(partial(recognizer.decode, given, _OPTIONS))
            recognizer.speculates = False
            plain, expected = timed(partial(recognizer.decode, given, _OPTIONS))
            assert found.tokens == expected.tokens, (found, expected)
            assert abs(found.score - expected.score) < 1e-4, (found.score, expected.score)
            if turn:  # the first warms up
                plain_ms.append(1e3 * plain)
                fast_ms.append(1e3 * fast)
                ratios.append(plain / fast)
    record.progress(f"unsure at {unsure:.0%}: {median(ratios):.2f}")
    return [unsure, median(plain_ms), median(fast_ms), median(ratios)]


def main() -> None:
    """Measure, print and record."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    record.add_option(parser)
    args = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    rows = [measure(share, args.rounds) for share in SHARES]
    columns = {
        "unsure positions": ".0%", "step by step, ms": ".1f", "speculative, ms": ".1f",
        "times as fast": ".2f",
    }  # fmt: skip
    note = "CPU time of the search of one utterance on one thread, without encoder and front end."
    table = Result(title="Speculative joint search", note=note, columns=columns, rows=rows)
    record.publish(args, "speculation", [table])


if __name__ == "__main__":
    main()
