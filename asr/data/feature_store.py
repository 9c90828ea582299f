"""Features that `asr prepare --features` computed: log power, packed without loss.

They are stored before normalisation, so that both kinds of `normalize` go with them. A pack holds
some utterances: safetensors, an id's tensor being the utterance's float32 numbers deflated, all
their first bytes together, then all their second ones and so on, which deflate better than numbers.
Such a cut has lhotse's `features`, whose `type` says what decided on the numbers.
"""

import zlib
from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np
import torch
from lhotse import Features
from lhotse.cut import Cut, MonoCut
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from asr.audio.features import FeaturesConfig
from asr.errors import AudioError, DataError
from asr.runtime.files import write_atomically

STORAGE = "asr_pack"


def feature_key(config: FeaturesConfig) -> str:
    """All that decides on log power features, as one line of JSON."""
    return config.model_dump_json(exclude={"normalize"})


def write_pack(path: Path, feats_by_id: Mapping[str, Tensor]) -> None:
    """Write log power features (time, freq) of some utterances, all of them or none."""
    packed = {key: _deflate(feats_TF) for key, feats_TF in feats_by_id.items()}
    frames = {key: str(len(feats_TF)) for key, feats_TF in feats_by_id.items()}
    write_atomically(path, lambda partial: partial.write_bytes(save(packed, frames)))


def frames_in(path: Path) -> dict[str, int]:
    """How many frames a pack has of each utterance."""
    with safe_open(path, "pt") as pack:
        return {key: int(frames) for key, frames in (pack.metadata() or {}).items()}


def attach_features(cut: MonoCut, pack: Path, n_frames: int, config: FeaturesConfig) -> None:
    """Let a cut know of its features in a pack."""
    cut.features = Features(
        type=feature_key(config),
        num_frames=n_frames,
        num_features=config.n_freqs,
        frame_shift=config.hop_ms / 1000,
        sampling_rate=config.sample_rate,
        start=cut.start,
        duration=cut.duration,
        storage_type=STORAGE,
        storage_path=str(pack.absolute()),
        storage_key=cut.id,
        recording_id=cut.recording.id,
        channels=cut.channel,
    )


def read(cut: Cut) -> Tensor | None:
    """Log power features (time, freq) of a cut; None where none are stored of just this cut.

    Raises AudioError where the pack is gone or damaged.
    """
    manifest = _manifest(cut)
    if manifest is None:
        return None
    try:
        with safe_open(manifest.storage_path, "pt") as pack:
            packed = pack.get_tensor(manifest.storage_key)
        return _inflate(packed, (manifest.num_frames, manifest.num_features))
    except (SafetensorError, OSError, ValueError, zlib.error) as error:
        raise AudioError(
            f"{cut.id}: its stored features cannot be read ({manifest.storage_path}: {error}): "
            "prepare the corpus again"
        ) from error


def check(cuts: Iterable[Cut], config: FeaturesConfig, source: Path) -> None:
    """Refuse, by DataError, cuts whose stored features are not those of a recipe."""
    wanted = feature_key(config)
    for found in {m.type for cut in cuts if (m := _manifest(cut)) is not None} - {wanted}:
        raise DataError(
            f"{source}: has stored features of {found}, the recipe wants {wanted}: prepare the "
            "corpus again with --features of this recipe, or without"
        )


def _manifest(cut: Cut) -> Features | None:
    """The pack's place; none for a part of a cut, and lhotse takes it off where speed changes."""
    found = getattr(cut, "features", None)
    if found is None or found.storage_type != STORAGE:
        return None
    return found if (found.start, found.duration) == (cut.start, cut.duration) else None


def _deflate(feats_TF: Tensor) -> Tensor:
    bytes_N4 = np.ascontiguousarray(feats_TF.numpy(), "<f4").view(np.uint8).reshape(-1, 4)
    return torch.frombuffer(bytearray(zlib.compress(bytes_N4.T.tobytes(), 1)), dtype=torch.uint8)


def _inflate(packed: Tensor, shape: tuple[int, int]) -> Tensor:
    planes_4N = np.frombuffer(zlib.decompress(packed.numpy().data), np.uint8).reshape(4, -1)
    return torch.from_numpy(planes_4N.T.copy().view("<f4").reshape(shape))
