"""The page of `--format html` in Debian's Chromium, without a network."""

import io
import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile as sf
import soxr
from playwright.sync_api import Browser, Page, expect

import asr
import asr.export.html
from asr.bundle import Bundle
from asr.config import Config
from asr.errors import ConfigError
from asr.export.html import build_page, check, export_html, options_of
from asr.lm.training import train_ngram
from asr.tokenizer import Tokenizer
from asr.transcription.recognizer import Recognizer
from asr.transcription.transcript import Transcript
from asr.transcription.writers import FORMATS, as_srt
from benchmarks.chromium import (
    CHROMIUM,
    DONE,
    Seen,
    chromium,
    dictate,
    downloaded,
    drop,
    keep_recordings,
    recorded,
    text_of,
)
from tests.helpers import RATE, coded, node_recognizer, run_cli, say, speak, tones_recipe

with_chromium = pytest.mark.skipif(not CHROMIUM, reason="there is no chromium: apt-get install it")
expect.set_options(timeout=60_000)


def untrained(corpus: Path, **changes: Any) -> Bundle:
    config = Config.model_validate(tones_recipe(corpus, **changes))
    return Bundle.create(config, Tokenizer.train(["一二三四五"], config.tokenizer))


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        (
            {"model": {"ctc_weight": 0.0}, "decoding": {"ctc_weight": 0.0}},
             "the model has no CTC head",
        ),
        ({"model": {"encoder": {"attention": {"kind": "linear"}}}}, r"attention\.kind: linear"),
        ({"model": {"projection": {"kind": "set_sparse"}}}, "is sparse"),
        ({"model": {"ranks": {"frontend.block1.conv2": 3}}}, "factorized convolutions.*conv2"),
    ],
)  # fmt: skip
def test_what_a_page_cannot_run_is_named(
    changes: dict[str, Any], reason: str, tmp_path: Path
) -> None:
    bundle = untrained(tmp_path, **changes)
    with pytest.raises(ConfigError, match=f"--format html: .*{reason}"):
        export_html(bundle, "x", tmp_path / "page.html")
    assert not list(tmp_path.iterdir())


def test_files_that_exist_and_pages_that_are_large_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bundle = untrained(tmp_path)
    (tmp_path / "there.html").touch()
    for name, reason in (("there.html", "already exists"), ("folder", "a name with .html")):
        with pytest.raises(ConfigError, match=reason):
            export_html(bundle, "x", tmp_path / name)
    monkeypatch.setattr(asr.export.html, "MOST_BYTES", 10_000)
    with pytest.raises(ConfigError, match=r"more than the 0\.01 MB that a page may have"):
        export_html(bundle, "x", tmp_path / "page.html")
    assert [path.name for path in tmp_path.iterdir()] == ["there.html"]
    check(bundle)


@pytest.fixture(scope="module")
def page_file(trained_bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("page") / "page.html"
    done = run_cli("export", trained_bundle, "--format", "html", "--out", out)
    assert done.returncode == 0, done.stderr
    assert out.stat().st_size < 500_000 and "MB" in done.stdout
    return out


@pytest.mark.skipif(not shutil.which("node"), reason="there is no node: apt-get install nodejs")
def test_a_language_model_that_is_given_is_in_the_page(
    trained_bundle: Path, tmp_path: Path
) -> None:
    (tmp_path / "words").write_text("一二\n五四三\n", "utf-8")
    lm, page, bundle = tmp_path / "lm.arpa", tmp_path / "page.html", Bundle.load(trained_bundle)
    train_ngram(bundle.config, bundle.tokenizer, [], [tmp_path / "words"], lm, 3)
    given = [trained_bundle, "--lm", lm, "--lm-weight", "1.5", "--lm-bonus", "0.5", "--out", page]
    refused = run_cli("export", *given)
    assert refused.returncode == 2 and "are for --format html" in refused.stderr
    done = run_cli("export", *given, "--format", "html")
    assert done.returncode == 0, done.stderr
    html = page.read_text("utf-8")
    config, weights = (
        re.search(f'id="{name}">(.*?)</script>', html, re.DOTALL)[1]
        for name in ("config", "weights")
    )
    wave = say(7, 2)[0]
    found = node_recognizer(
        """
        const weights = readWeights(given.weights, given.config.weights);
        const recognizer = new Recognizer(given.config, weights);
        return recognizer.segment(floats(given.wave), 0, 1);
        """,
        config=json.loads(config), weights=weights, wave=coded(wave),
    )  # fmt: skip
    model = Recognizer(bundle, "cpu")
    plain, own = (
        model.transcribe(
            asr.Samples(wave, RATE), options_of(Bundle.load(trained_bundle)).changed(c)
        )
        for c in ({}, {"lm": lm, "lm_weight": 1.5, "lm_bonus": 0.5})
    )
    assert found["text"] == own.text
    assert found["score"] == pytest.approx(own.score, abs=0.05)
    assert abs(plain.score - own.score) > 1, "the n-gram's weight is in the score"


@pytest.fixture(scope="module")
def recognizer(trained_bundle: Path) -> Recognizer:
    return Recognizer(Bundle.load(trained_bundle), "cpu")


def transcribed(recognizer: Recognizer, path: Path) -> Transcript:
    bundle = Bundle(recognizer.config, recognizer.tokenizer, recognizer.features, recognizer.model)
    return recognizer.transcribe(path, options_of(bundle))


@pytest.fixture(scope="module")
def spoken(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Half a minute of tones, more than one segment."""
    path = tmp_path_factory.mktemp("spoken") / "tones.wav"
    sf.write(path, np.concatenate([say(6, seed)[0] for seed in range(16)]), RATE)
    return path


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    sentence = tmp_path_factory.mktemp("sentence") / "sentence.wav"
    sf.write(sentence, say(5, 7)[0], RATE)
    with chromium(sentence) as browser:
        yield browser


@pytest.fixture
def opened(browser: Browser, page_file: Path) -> Iterator[Page]:
    """The page without a network; nothing may leave it, and nothing go wrong."""
    yield from _opened(browser, page_file)


def _opened(
    browser: Browser, file: Path, is_attacked: bool = False, **options: Any
) -> Iterator[Page]:
    context = browser.new_context(permissions=["microphone"], **options)
    context.set_offline(True)
    page, seen = context.new_page(), Seen()
    keep_recordings(page)
    seen.watch(page)
    page.goto(file.as_uri())
    yield page
    context.close()
    assert is_attacked or not (seen.problems or seen.left(file))


@with_chromium
def test_a_dropped_file_has_the_text_of_ctc_beam(
    opened: Page, recognizer: Recognizer, spoken: Path
) -> None:
    wanted = transcribed(recognizer, spoken)
    assert len(wanted.segments) > 1 and len(wanted.text) > 50
    drop(opened, [spoken])
    expect(opened.locator("#status")).to_have_text(DONE)
    assert text_of(opened) == wanted.text
    for format in ("txt", "srt", "vtt"):
        assert downloaded(opened, format) == FORMATS[format](wanted)
    found = json.loads(downloaded(opened, "json"))
    assert found["score"] == pytest.approx(wanted.score, abs=0.01)
    expect(opened.locator("#wave")).to_have_attribute("aria-valuemax", f"{wanted.duration:.1f}")


@with_chromium
def test_the_microphone_has_the_text_of_ctc_beam(
    opened: Page, recognizer: Recognizer, tmp_path: Path
) -> None:
    dictate(opened, 2)
    (tmp_path / "recorded.wav").write_bytes(recorded(opened))
    wanted = transcribed(recognizer, tmp_path / "recorded.wav")
    assert text_of(opened) == wanted.text and len(wanted.text) >= 3
    assert downloaded(opened, "srt") == as_srt(wanted)


@with_chromium
def test_the_microphone_has_live_text_where_the_bundle_streams(
    browser: Browser, streaming_bundle: Path, tmp_path: Path
) -> None:
    file = tmp_path / "page.html"
    export_html(Bundle.load(streaming_bundle), "x", file)
    model = asr.load(streaming_bundle, "cpu")
    for page in _opened(browser, file):
        page.get_by_role("button", name="Record").click()
        expect(page.locator("#partial")).to_have_text(re.compile(".."))
        expect(page.locator("#recording")).to_be_visible()
        page.get_by_role("button", name="Stop").click()
        expect(page.locator("#status")).to_have_text(DONE)
        wave, rate = sf.read(io.BytesIO(recorded(page)), dtype="float32")
        blocks = [soxr.resample(wave, rate, RATE)]
        options = options_of(Bundle.load(streaming_bundle))
        wanted = [r.text for r in model.stream(blocks, options) if r.is_final]
        assert page.locator("#segments .text").all_inner_texts() == wanted and wanted[0]
        srt = downloaded(page, "srt")
        assert srt.startswith("1\n00:00:0") and wanted[0] in srt


@with_chromium
def test_a_compressed_recording_is_decoded_by_the_browser(
    opened: Page, recognizer: Recognizer, tmp_path: Path
) -> None:
    sf.write(tmp_path / "a.flac", say(8, 3)[0], RATE)
    bad = tmp_path / "bad.mp3"
    bad.write_text("<!doctype html>")
    opened.set_input_files("#file", [tmp_path / "a.flac", bad])
    rows = opened.locator("#queue .state")
    expect(rows).to_have_text([re.compile(r"^\d:\d\d$"), "failed"])
    assert text_of(opened) == transcribed(recognizer, tmp_path / "a.flac").text
    opened.locator("#queue button").nth(1).click()
    expect(opened.get_by_role("alert")).to_have_text(re.compile("bad.mp3 is not a recording"))


@with_chromium
def test_names_are_text_and_the_policy_forbids_all_else(
    browser: Browser, tiny_bundle: Path, tmp_path: Path
) -> None:
    name = "</script><img src=https://x.test/a onerror=alert(1)>"
    file = tmp_path / "page.html"
    content = build_page(Bundle.load(tiny_bundle), name)
    file.write_text(content, "utf-8")
    assert "<img" not in content and "<!--" not in content
    assert content.lower().count("</script") == content.count("<script")
    for page in _opened(browser, file, is_attacked=True):
        expect(page.locator("#model")).to_have_text(name)
        blocked = page.evaluate(
            """async () => {
                const seen = [];
                addEventListener("securitypolicyviolation", (e) => seen.push(e.effectiveDirective));
                window.ran = 0;
                const script = document.createElement("script");
                script.textContent = "window.ran = 1";
                document.body.append(script);
                const image = new Image();
                image.src = "https://x.test/b";
                await fetch("https://x.test/c").catch(() => {});
                await new Promise((resolve) => setTimeout(resolve, 100));
                return [window.ran, seen.sort()];
            }"""
        )
        assert blocked == [0, ["connect-src", "img-src", "script-src-elem"]]


@with_chromium
def test_it_fits_a_phone_in_the_dark_and_needs_no_mouse(
    browser: Browser, page_file: Path, tmp_path: Path
) -> None:
    sf.write(tmp_path / "a.wav", speak("三一四", 9), RATE)
    options = {"color_scheme": "dark", "viewport": {"width": 340, "height": 700}}
    for page in _opened(browser, page_file, locale="zh-CN", **options):
        page.on("filechooser", lambda chooser: chooser.set_files(tmp_path / "a.wav"))
        expect(page.locator("#model")).to_be_enabled()
        page.locator("#language").focus()
        page.keyboard.press("Tab")
        page.keyboard.press("Enter")
        expect(page.locator("#status")).to_have_text(re.compile("^已转写"))
        assert page.evaluate("document.documentElement.scrollWidth") <= 340
        ground = page.locator("body").evaluate("e => getComputedStyle(e).backgroundColor")
        assert sum(map(int, re.findall(r"\d+", ground))) < 150
        expect(page.locator("footer")).to_have_text(re.compile("录音不会离开本页面"))
