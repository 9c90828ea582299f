"""Run our decoder and our whole recognizer at the papers' sizes, with random weights.

A subject is a projection, `dense`, `lrt` or `lrt_int8`, and words after it:

- `whole` begins with the waveform;
- `small` has the front end and features of best.yaml in place of the papers';
- `sure` has a decoder and a CTC head that know the text, as trained ones mostly do, so that joint
  search with CTC can speculate;
- `stepwise` keeps `sure` from speculation;
- `greedy` decodes by the CTC head alone.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from asr.audio.features import SpectrogramConfig
from asr.config import load_config
from asr.decoding.beam_search import BeamSearch
from asr.decoding.ctc_greedy import greedy_texts
from asr.decoding.decode import Encoded, SpeechDecoder
from asr.decoding.options import DecodingOptions
from asr.decoding.scorers import JointScorer
from asr.model.inference.decoder import FastDecoder
from asr.model.inference.frontend import in_tiles
from asr.model.inference.int8 import in_8_bits
from asr.model.projection import DenseConfig, LowRankConfig
from asr.model.transformer import ModelConfig, SpeechTransformer
from asr.tokenizer import EOS, SPECIAL
from benchmarks.engines import BEAM, STEPS, TOKENS, VOCAB, D, Run
from benchmarks.speculation import InformedDecoder, Words, encoded, informed

SECONDS, RATE = 4.5, 16000
BEST = Path(__file__).parents[1] / "recipes/aishell1/best.yaml"
CTC_WEIGHT, GREEDY = 0.3, DecodingOptions(method="ctc_greedy")
Find = Callable[[Tensor, Tensor], list[tuple[int, ...]]]


@dataclass(frozen=True)
class Subject:
    """What is run: a projection, and the words after it as flags."""

    projection: str
    flags: frozenset[str]

    @classmethod
    def named(cls, name: str) -> "Subject":
        """Return the subject of a name."""
        projection, *flags = name.split()
        assert projection in ("dense", "lrt", "lrt_int8"), name
        assert set(flags) <= {"whole", "small", "sure", "stepwise", "greedy"}, name
        return cls(projection, frozenset(flags))

    def build(self) -> tuple[SpeechTransformer, torch.nn.Module]:
        """Return the model, as a recognizer on a CPU has it, and its features."""
        torch.manual_seed(0)
        projection = DenseConfig() if self.projection == "dense" else LowRankConfig(rank=50)
        config = ModelConfig(projection=projection, ctc_weight=CTC_WEIGHT * self.has_ctc)
        features = SpectrogramConfig(sample_rate=RATE)
        if "small" in self.flags:
            best = load_config(BEST, [])
            config = config.model_copy(update={"frontend": best.model.frontend})
            features = best.features  # type: ignore[assignment]
        model = config.build(features.n_freqs, VOCAB).eval()
        if not self.has_ctc:
            with torch.no_grad():
                model.decoder.output.bias[EOS] = -1e4  # never the end: exactly TOKENS tokens
        int8 = self.projection.endswith("int8")
        kind = InformedDecoder if self.is_sure else FastDecoder
        model.decoder = kind(model.decoder, int8=int8)
        model.frontend = in_tiles(model.frontend)
        if int8:
            in_8_bits(model)
        return model, features.build().eval()

    @property
    def is_sure(self) -> bool:
        """Return whether the decoder knows the text."""
        return "sure" in self.flags

    @property
    def has_ctc(self) -> bool:
        """Return whether there is a CTC head."""
        return self.is_sure or "greedy" in self.flags

    def run(self) -> Run:
        """Return a function that searches the texts of a batch of so many utterances."""
        model, extract = self.build()
        waves, memories = noise(), torch.randn(32, STEPS, D)
        find = self._sure(model) if self.is_sure else _unsure(model)

        def run(batch: int) -> None:
            memory, keep = memories[:batch], torch.ones(batch, STEPS, dtype=torch.bool)
            if "whole" in self.flags:
                feats = torch.stack([extract(wave) for wave in waves[:batch]])
                memory, keep = model.encode(feats, torch.full((batch,), feats.shape[1]))
                if model.ctc_head:
                    logp = model.ctc_logits(memory).log_softmax(-1)  # for its time alone
                    if "greedy" in self.flags:
                        greedy_texts(logp, keep.sum(1), GREEDY, torch.ones(VOCAB))
                        return
            assert all(len(tokens) == TOKENS for tokens in find(memory, keep))

        return torch.inference_mode()(run)

    def _sure(self, model: SpeechTransformer) -> Find:
        """Return a joint search with CTC of one utterance, whose text is known to both heads."""
        text = torch.randperm(VOCAB - len(SPECIAL))[:TOKENS] + len(SPECIAL)
        assert isinstance(model.decoder, InformedDecoder)
        model.decoder.likely_UV = informed(text, 0.0)
        recognizer = SpeechDecoder(model, Words())  # type: ignore[arg-type]
        recognizer.speculates = "stepwise" not in self.flags
        options = DecodingOptions(beam_size=BEAM, ctc_weight=CTC_WEIGHT, n_best=1)
        known: dict[int, Encoded] = {}

        def find(memory: Tensor, keep: Tensor) -> list[tuple[int, ...]]:
            steps = memory.shape[1]
            if steps not in known:
                known[steps] = encoded(text, steps)
            (nbest,) = recognizer.decode(Encoded(memory, keep, known[steps].logp_BSV), options)
            return [nbest[0].tokens]

        return find


def noise() -> Tensor:
    """Return waveforms of noise (32, N)."""
    return torch.randn(32, int(SECONDS * RATE)) * 0.1


def _unsure(model: SpeechTransformer) -> Find:
    """Return a joint search without CTC: a random decoder is sure of nothing."""
    search = BeamSearch(DecodingOptions(beam_size=BEAM), torch.ones(VOCAB))
    decoder = model.decoder
    assert isinstance(decoder, FastDecoder)

    def find(memory: Tensor, keep: Tensor) -> list[tuple[int, ...]]:
        models = JointScorer(decoder.step, decoder.start(memory, keep), None, None)
        found = search(models, torch.full((len(memory),), TOKENS))
        return [tuple(nbest[0].tokens) for nbest in found]

    return find
