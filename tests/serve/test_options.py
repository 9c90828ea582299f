"""What a request or a setting says: names of bundles, updates of sessions, quick texts."""

import pickle
import shutil
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from asr.bundle import Bundle
from asr.decoding.options import DecodingOptions
from asr.errors import AsrError
from serve.bundles import local_bundles
from serve.engine.job import options_of
from serve.routes.realtime_schemas import (
    Format,
    Options,
    ServerVad,
    SessionUpdate,
    TranscriptionOptions,
)
from serve.settings import Settings


@pytest.mark.parametrize(
    ("given", "name", "folder"),
    [
        ("exp/demo/lrt", "lrt", "exp/demo/lrt"),
        ("exp/lr=0.1/lrt", "lrt", "exp/lr=0.1/lrt"),
        ("./lr=0.1", "lr=0.1", "./lr=0.1"),
        ("zh=exp/lr=0.1/lrt", "zh", "exp/lr=0.1/lrt"),
        ("zh=lr=0.1", "zh", "lr=0.1"),
    ],
)
def test_a_name_stands_before_the_first_equals_sign(given: str, name: str, folder: str) -> None:
    with ExitStack() as copies:
        bundles = local_bundles([given], copies)
    path = Path(folder) if given.startswith("zh=") else Path(folder).resolve()
    assert Settings.read(bundles=tuple(bundles)).models == {name: path}


def test_a_model_stays_the_one_of_the_start_when_a_link_is_changed(tmp_path: Path) -> None:
    for name in ("run1", "run2"):
        (tmp_path / name).mkdir()
    link = tmp_path / "current"
    link.symlink_to("run1")
    settings = Settings.read(bundles=(str(link),))
    assert settings.models == {"run1": tmp_path / "run1"}
    link.unlink()
    link.symlink_to("run2")
    for copy in (settings, pickle.loads(pickle.dumps(settings)), settings.model_copy()):
        assert copy.models == {"run1": tmp_path / "run1"}
        assert copy.find_model("run2") is None and copy.find_model("whisper-1") == "run1"
    assert settings.model_copy(update={"bundles": (f"a={link}",)}).models == {"a": link}


def test_a_bundle_by_url_is_copied_under_its_name(tiny_bundle: Path) -> None:
    with ExitStack() as copies:
        given = [f"zh=file://{tiny_bundle}", f"file://{tiny_bundle}"]
        named, other = local_bundles(given, copies)
        models = Settings.read(bundles=(named, other)).models
        assert "zh" in models and len(models) == 2
        assert all((folder / "config.yaml").is_file() for folder in models.values())


@pytest.mark.parametrize("damaged", ["x: 2024-13-01\n", "[" * 5000, "decoding: [\n"])
def test_a_damaged_configuration_by_url_is_told_when_the_bundle_is_loaded(
    damaged: str, tiny_bundle: Path, tmp_path: Path
) -> None:
    shutil.copytree(tiny_bundle, tmp_path / "b")
    (tmp_path / "b/config.yaml").write_text(damaged)
    with ExitStack() as copies:
        (copy,) = local_bundles([f"file://{tmp_path}/b"], copies)
        with pytest.raises(AsrError, match=r"config\.yaml"):
            Bundle.load(Path(copy.partition("=")[2]))


def test_what_an_update_of_a_session_does_not_name_stays() -> None:
    old = Options(
        model="demo",
        transcription=TranscriptionOptions(prompt="王小明, Anna", language="zh"),
        format=Format(rate=16000),
        vad=ServerVad(silence_duration_ms=2000, threshold=0.2),
    )
    assert [word.phrase for word in old.transcription.hotwords] == ["王小明", "Anna"]

    def updated(**input: Any) -> Options:
        return old.updated(SessionUpdate.model_validate({"audio": {"input": input}}), "demo")

    new = updated(
        format={"type": "audio/pcm"}, transcription={"language": "en"},
        turn_detection={"threshold": 0.6},
    )  # fmt: skip
    assert new.format.rate == 16000 and new.transcription.language == "en"
    assert new.transcription.hotwords == old.transcription.hotwords
    assert new.vad == ServerVad(silence_duration_ms=2000, threshold=0.6)
    assert updated(transcription={"prompt": "Bob"}).transcription.hotwords[0].phrase == "Bob"
    assert updated(turn_detection=None).vad is None
    assert updated() == old


@pytest.mark.parametrize(("method", "threshold"), [("joint", None), ("ctc_beam", 0.35)])
def test_a_quick_text_has_no_threshold_of_the_decoder(method: str, threshold: float | None) -> None:
    options = DecodingOptions.model_validate({"method": method, "confidence_threshold": 0.35})
    recognizer: Any = SimpleNamespace(
        config=SimpleNamespace(decoding=options), model=SimpleNamespace(ctc_head=object())
    )
    quick: Any = SimpleNamespace(quick=True, hotwords=())
    found = options_of(recognizer, quick)
    assert found == options.changed({"method": "ctc_greedy"})
    assert found.confidence_threshold == threshold
