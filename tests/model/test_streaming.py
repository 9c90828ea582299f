"""A streaming encoder: chunk by chunk it gives what the whole gives with the same chunks."""

import cmath
from pathlib import Path
from typing import Any

import pytest
import torch
from pydantic import TypeAdapter, ValidationError
from torch import Tensor, nn

from asr.config import check_config
from asr.errors import ConfigError
from asr.model.convolution import Convolution
from asr.model.encoder import EncoderConfig
from asr.model.frontend import Frontend, FrontendConfig, VggFrontend
from asr.model.projection import DenseConfig
from asr.model.streaming import EncoderState, StreamingConfig, rotate, seen_in_chunks
from asr.model.transformer import ModelConfig, SpeechTransformer
from tests.helpers import ENCODER, FREQS, HEADS, INNER, D, build, padded_batch

PROJECTIONS: list[dict[str, Any]] = [
    {"kind": "dense"},
    {"kind": "low_rank", "rank": 3},
    {"kind": "set_sparse", "epsilon": 2},
    {"kind": "block_sparse", "block": 4},
]
ATTENTIONS: list[dict[str, Any]] = [
    {"kind": "full"},
    {"kind": "sliding_window", "window": 3, "dilation": 2},
]
CHUNK, LEFT = 3, 2
REACH = VggFrontend.before


def streaming(rotary: bool = False, **changes: Any) -> SpeechTransformer:
    encoder = {
        "n_layers": 2,
        "convolution": 5,
        "streaming": {"chunk": CHUNK, "left_chunks": LEFT, "rotary": rotary},
        **changes.pop("encoder", {}),
    }
    values = {
        "d_model": D, "d_inner": INNER, "n_heads": HEADS, "encoder": encoder, "norm": "pre",
        "projection": {"kind": "low_rank", "rank": 3}, "ctc_weight": 0.5,
        "frontend": {"kind": "vgg", "channels": [3, 4]}, **changes,
    }  # fmt: skip
    return build(ModelConfig.model_validate(values))


def fed(model: SpeechTransformer, feats_TF: Tensor, chunk: int) -> Tensor:
    """The memory (S, D) of an utterance whose frames arrive chunk by chunk."""
    state, found = model.encoder.start_stream(), []
    before, after = model.frontend.before, model.frontend.after
    padded = nn.functional.pad(feats_TF, (0, 0, before, after + 3))
    steps = model.config.frontend.steps(len(feats_TF))
    for start in range(0, steps, chunk):
        n = min(chunk, steps - start)
        frames = padded[4 * start : 4 * (start + n) + before + after]
        found.append(model.encode_chunk(frames[None], torch.tensor([n]), state)[1][0])
    return torch.cat(found)


def whole(model: SpeechTransformer, feats_TF: Tensor, chunk: int | None = None) -> Tensor:
    memory_1SD, _ = model.encode(feats_TF[None], torch.tensor([len(feats_TF)]), chunk)
    return memory_1SD[0]


@pytest.mark.parametrize("rotary", [False, True])
@pytest.mark.parametrize("attention", ATTENTIONS, ids=lambda a: a["kind"])
@pytest.mark.parametrize("projection", PROJECTIONS, ids=lambda p: p["kind"])
@torch.no_grad()
def test_the_cached_forward_is_the_masked_one_and_one_chunk_is_the_offline_one(
    projection: dict[str, Any], attention: dict[str, Any], rotary: bool
) -> None:
    model = streaming(rotary, projection=projection, encoder={"attention": attention})
    feats = torch.randn(4 * 17 + 3, FREQS)
    for chunk in (1, 3, 4, 16):
        torch.testing.assert_close(
            fed(model, feats, chunk), whole(model, feats, chunk), atol=1e-5, rtol=1e-5
        )
    offline = whole(model, feats)
    torch.testing.assert_close(fed(model, feats, 17), offline, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(whole(model, feats, 17), offline, atol=1e-5, rtol=1e-5)
    assert (whole(model, feats, 3) - offline).abs().max() > 1e-3  # chunks do hide something


@pytest.mark.parametrize("changes", [
    {"encoder": {"convolution": None}}, {"norm": "post"},
    {"encoder": {"conditioning": {"layer": 1}}}, {"encoder": {"convolution": 1}},
    {"encoder": {"sounds": {"layer": 1}}},
    {"frontend": {"kind": "vgg_low_rank", "channels": [3, 5], "rank": 4}},
    {"frontend": {"kind": "strided", "channels": [3, 4]}},
    {"frontend": {"kind": "strided", "channels": [3, 4], "separable": True}},
])  # fmt: skip
@torch.no_grad()
def test_it_is_so_in_every_form_of_layers(changes: dict[str, Any]) -> None:
    model, feats = streaming(**changes), torch.randn(50, FREQS)
    for chunk, same in ((2, 2), (13, None)):
        torch.testing.assert_close(
            fed(model, feats, chunk), whole(model, feats, same), atol=1e-5, rtol=1e-5
        )


@pytest.mark.parametrize(("kind", "frames"), [
    ({"kind": "vgg"}, 76), ({"kind": "vgg_low_rank", "rank": 4}, 76),
    ({"kind": "strided"}, 67), ({"kind": "strided", "separable": True}, 67),
], ids=str)  # fmt: skip
@torch.no_grad()
def test_a_front_end_without_padding_needs_so_many_frames_for_16_steps(
    kind: dict[str, Any], frames: int
) -> None:
    config: Any = TypeAdapter(FrontendConfig).validate_python({"channels": [3, 5], **kind})
    front: Frontend = config.build(FREQS, D, DenseConfig(), pads=False)
    feats, around = torch.randn(1, frames, FREQS), front.before + front.after
    steps = front.convolve(feats)
    assert frames == 64 + around
    assert steps.shape == (1, 16, D) and front.convolve(feats[:, :-1]).shape[1] == 15
    for s in (0, 7, 15):  # a step is a function of these frames alone
        own = feats[:, 4 * s : 4 * s + 4 + around]
        torch.testing.assert_close(front.convolve(own)[:, 0], steps[:, s])


@torch.no_grad()
def test_the_weights_are_those_of_an_offline_model() -> None:
    values = streaming().config.model_dump()
    values["encoder"]["streaming"] = None
    offline = ModelConfig.model_validate(values).build(FREQS, 11)
    assert {k: v.shape for k, v in offline.state_dict().items()} == {
        k: v.shape for k, v in streaming().state_dict().items()
    }


@pytest.mark.parametrize("rotary", [False, True])
@pytest.mark.parametrize("attention", ATTENTIONS, ids=lambda a: a["kind"])
def test_nothing_in_a_chunk_depends_on_later_audio_or_on_what_is_beyond_its_left(
    attention: dict[str, Any], rotary: bool
) -> None:
    model = streaming(rotary, encoder={"attention": attention, "n_layers": 1, "convolution": None})
    feats = torch.randn(4 * 20, FREQS, requires_grad=True)
    for path in (fed, whole):
        memory = path(model, feats, CHUNK)
        (gradient,) = torch.autograd.grad(memory[4 * CHUNK : 5 * CHUNK].square().sum(), feats)
        (touched,) = gradient.abs().sum(1).nonzero(as_tuple=True)
        assert touched.max() == 4 * 5 * CHUNK + REACH - 1
        first = 4 * CHUNK - LEFT * CHUNK  # the first step that the chunk sees
        assert touched.min() == 4 * first - REACH


@pytest.mark.parametrize("rotary", [False, True])
@torch.no_grad()
def test_padding_and_the_others_of_a_batch_change_nothing_in_chunks(rotary: bool) -> None:
    model = streaming(rotary)
    lengths = [61, 24, 40, 5]
    batch, lengths_B, alone = padded_batch(lengths, 100.0)
    memory, mask = model.encode(batch, lengths_B, CHUNK)
    assert memory.isfinite().all()
    for row, valid, feats in zip(memory, mask, alone, strict=True):
        torch.testing.assert_close(row[valid], whole(model, feats, CHUNK), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("rotary", [False, True])
@torch.no_grad()
def test_sessions_at_different_times_share_a_batch(rotary: bool) -> None:
    model = streaming(rotary)
    state_of: dict[str, EncoderState] = {}
    feats = {name: torch.randn(4 * 12, FREQS) for name in "abc"}
    expected = {name: fed(model, f, CHUNK) for name, f in feats.items()}
    padded = {name: nn.functional.pad(f, (0, 0, REACH, REACH)) for name, f in feats.items()}
    done = dict.fromkeys(feats, 0)
    for names in ("a", "ab", "bc", "ab", "c", "abc"):
        states = [state_of.get(n) or model.encoder.start_stream() for n in names]
        joined = EncoderState.join(states)
        frames = [
            padded[n][4 * CHUNK * done[n] : 4 * CHUNK * (done[n] + 1) + 2 * REACH] for n in names
        ]
        steps = torch.full((len(names),), CHUNK)
        _, memory = model.encode_chunk(torch.stack(frames), steps, joined)
        for i, n in enumerate(names):
            here = expected[n][CHUNK * done[n] : CHUNK * (done[n] + 1)]
            torch.testing.assert_close(memory[i], here, atol=1e-5, rtol=1e-5)
            state_of[n] = joined.select(torch.tensor([i]))
            done[n] += 1
    assert done == {"a": 4, "b": 4, "c": 3}


@torch.no_grad()
def test_a_session_that_ends_within_a_chunk_is_padded_in_the_batch() -> None:
    model, feats = streaming(), torch.randn(4 * 2, FREQS)
    frames = torch.stack(
        [nn.functional.pad(feats, (0, 0, REACH, REACH + 4)), torch.randn(24, FREQS)]
    )
    _, memory = model.encode_chunk(frames, torch.tensor([2, 3]), model.encoder.start_stream(2))
    torch.testing.assert_close(memory[0, :2], whole(model, feats), atol=1e-5, rtol=1e-5)


@torch.no_grad()
def test_the_state_does_not_grow() -> None:
    model = streaming()
    state = model.encoder.start_stream()

    def shapes() -> list[torch.Size]:
        return [t.shape for cache in state.caches for t in cache] + [state.valid_BL.shape]

    first = shapes()
    for _ in range(9):
        model.encode_chunk(torch.randn(1, 4 * CHUNK + 12, FREQS), torch.tensor([CHUNK]), state)
        assert shapes() == first
        assert all(t.untyped_storage().nbytes() < 10_000 for c in state.caches for t in c)


def test_what_chunks_see_is_what_the_definition_says() -> None:
    for chunk, left in ((1, 2), (3, 3), (4, 8), (50, 1)):
        seen = seen_in_chunks(torch.tensor([[True] * 10 + [False] * 2]), chunk, left)[0]
        for i in range(12):
            for j in range(12):
                first = i - i % chunk
                is_seen = first - left <= j < first + chunk and j < 10
                assert bool(seen[i, j]) == (is_seen or i == j)


def test_a_convolution_in_chunks_is_one_over_each_chunk_with_what_is_before_it() -> None:
    torch.manual_seed(0)
    config = ModelConfig(d_model=D, d_inner=INNER, n_heads=HEADS, projection=DenseConfig())
    unit, x = Convolution(config, 5).eval(), torch.randn(1, 11, D)
    found = unit(x, torch.ones(1, 11, dtype=torch.bool), 4)
    for start in range(0, 11, 4):
        until = x[:, : start + 4]
        expected = unit(until, torch.ones(until.shape[:2], dtype=torch.bool))[:, start:]
        torch.testing.assert_close(found[:, start : start + 4], expected)


@pytest.mark.parametrize(("chunk", "least", "most"), [(16, 4, 25), (8, 2, 12), (1, 1, 1)])
def test_training_draws_whole_utterances_and_chunks_by_torchs_generator(
    chunk: int, least: int, most: int
) -> None:
    config = StreamingConfig(chunk=chunk)
    torch.manual_seed(5)
    drawn = [config.draw() for _ in range(2000)]
    torch.manual_seed(5)
    assert [config.draw() for _ in range(2000)] == drawn
    chunks = [chunk for chunk in drawn if chunk is not None]
    assert 900 < len(chunks) < 1100 and set(chunks) == set(range(least, most + 1))


def test_training_hides_what_is_beyond_the_drawn_chunk(monkeypatch: pytest.MonkeyPatch) -> None:
    model, feats = streaming(dropout=0.0), torch.randn(60, FREQS)
    for chunk in (None, 2):
        monkeypatch.setattr(StreamingConfig, "draw", lambda _, chunk=chunk: chunk)
        torch.testing.assert_close(whole(model.train(), feats), whole(model.eval(), feats, chunk))


@pytest.mark.parametrize("rotary", [False, True])
@torch.no_grad()
def test_what_a_stream_gives_does_not_depend_on_when_it_began(rotary: bool) -> None:
    model, feats = streaming(rotary), torch.randn(4 * 30, FREQS)
    cut = 4 * CHUNK * 5
    found = fed(model, feats, CHUNK)
    # Two layers see 2 · LEFT chunks back; what begins later than that gives the same steps.
    later = fed(model, feats[4 * CHUNK :], CHUNK)
    torch.testing.assert_close(found[cut // 4 + CHUNK :], later[cut // 4 :], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("size", [6, 5])
def test_rotation_is_that_of_complex_numbers(size: int) -> None:
    torch.manual_seed(0)
    x, start, half = torch.randn(2, 3, 9, size), 4, size // 2
    found = rotate(x, start)
    for s in range(9):
        for i in range(half):
            turned = torch.complex(x[..., s, i], x[..., s, i + half]).to(torch.complex128)
            turned = turned * cmath.exp(1j * (start + s) * 100 ** (-2 * i / size))
            pair = torch.complex(found[..., s, i], found[..., s, i + half])
            torch.testing.assert_close(pair, turned.to(torch.complex64), atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(found[..., 2 * half :], x[..., 2 * half :])


@torch.no_grad()
def test_attention_knows_an_order_with_rotary_positions_alone() -> None:
    x, mask, order = torch.randn(1, 9, D), torch.ones(1, 9, dtype=torch.bool), torch.randperm(9)
    for rotary in (False, True):
        encoder = streaming(rotary, encoder={"convolution": None}).encoder
        change = (encoder(x[:, order], mask) - encoder(x, mask)[:, order]).abs().max()
        assert (change > 1e-4) == rotary


@pytest.mark.parametrize("kind", sorted(ENCODER))
def test_other_attentions_are_refused_in_one_sentence(kind: str) -> None:
    values = {"attention": {"kind": kind, **ENCODER[kind]}, "streaming": {}}
    if kind == "full":
        assert EncoderConfig.model_validate(values).streaming == StreamingConfig()
        return
    with pytest.raises(ValidationError, match=f"kind {kind} is given: change either"):
        EncoderConfig.model_validate(values)  # sliding_window has global tokens here


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"features": {"kind": "log_mel"}}, "kind log_mel are relative to .* use kind fbank"),
        ({"features": {"kind": "fbank"}}, "set features.normalize: corpus"),
        ({"model": {"ctc_weight": 0}}, "needs a CTC head"),
    ],
)
def test_what_a_stream_cannot_have_is_refused_before_anything_is_built(
    tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    features = {"kind": "fbank", "normalize": "corpus"}
    model = {"encoder": {"streaming": {}}, "ctc_weight": 0.5}
    values = {"data": {"train": "a.jsonl", "dev": "b.jsonl"}, "features": features, "model": model}
    assert check_config(values, tmp_path).model.encoder.streaming == StreamingConfig()
    for key, value in changes.items():
        values[key] = value if key == "features" else {**model, **value}
    with pytest.raises(ConfigError, match=message):
        check_config(values, tmp_path)
