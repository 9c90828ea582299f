"""The page, driven by Debian's Chromium: files, a microphone, the keyboard, the dark, Chinese."""

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import soundfile as sf
from playwright.sync_api import Browser, BrowserContext, Page, expect

import asr
from asr.audio.recording import Recording
from asr.transcription.recognizer import Recognizer
from asr.transcription.transcript import Transcript
from asr.transcription.writers import FORMATS
from benchmarks.chromium import CHROMIUM, DONE, Seen, chromium, downloaded, drop, text_of
from tests.helpers import RATE, Service, changed, running, say, stopped, wait_for

pytestmark = pytest.mark.skipif(
    not CHROMIUM, reason="there is no chromium: apt-get install chromium"
)
expect.set_options(timeout=60_000)


@pytest.fixture(scope="module")
def library(trained_bundle: Path) -> Recognizer:
    return asr.load(trained_bundle, "cpu")


@pytest.fixture(scope="module")
def spoken(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Half a minute of tones, more than one segment."""
    path = tmp_path_factory.mktemp("spoken") / "tones.wav"
    sf.write(path, np.concatenate([say(6, seed)[0] for seed in range(16)]), RATE)
    return path


@pytest.fixture(scope="module")
def sentence(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Five tones, which have n best, and which the microphone records."""
    path = tmp_path_factory.mktemp("sentence") / "sentence.wav"
    sf.write(path, say(5, 7)[0], RATE)
    return path


@pytest.fixture(scope="module")
def browser(sentence: Path) -> Iterator[Browser]:
    with chromium(sentence) as browser:
        yield browser


@contextmanager
def opened(browser: Browser, service: Service, **options) -> Iterator[tuple[Page, Seen]]:
    """The page in a browser of its own; nothing may go wrong in it, or to another host."""
    base = f"http://{service.host}:{service.port}"
    context: BrowserContext = browser.new_context(base_url=base, **options)
    page, seen = context.new_page(), Seen()
    seen.watch(page)
    page.goto("/")
    yield page, seen
    context.close()
    assert not seen.problems
    assert all(url.startswith((f"{base}/", f"blob:{base}/")) for url in seen.urls)


def loaded(page: Page) -> None:
    expect(page.locator("#model")).to_be_enabled()


def test_a_file_is_dropped_and_its_text_seen(browser, trained_service, library, spoken):
    expected = library.transcribe(spoken)
    assert len(expected.segments) > 1 and len(expected.text) > 50
    with opened(browser, trained_service) as (page, _):
        loaded(page)
        drop(page, [spoken])
        expect(page.locator("#segments li")).to_have_count(len(expected.segments))
        assert text_of(page) == expected.text
        expect(page.locator("#name")).to_have_text("tones.wav")
        times = page.locator("#segments .time").all_inner_texts()
        assert times == [f"0:{int(s.start):02}" for s in expected.segments]
        check_downloads(page, expected)
        # A word is clicked: it plays from there.
        word = page.locator(".word").nth(20)
        word.click()
        token = [t for s in expected.segments for t in s.tokens or ()][20]
        expect(page.locator(".word.now").first).to_be_visible()
        assert page.locator("#audio").evaluate("a => a.currentTime") >= token.start - 0.01
        expect(page.locator("#wave")).to_have_attribute("aria-valuemax", f"{expected.duration:.1f}")
        assert drawn(page) > 1000


def check_downloads(page: Page, expected: Transcript) -> None:
    for format in ("txt", "srt", "vtt"):
        assert downloaded(page, format) == FORMATS[format](expected)
    found = json.loads(downloaded(page, "json"))
    assert found["text"] == expected.text
    assert found["segments"][1]["tokens"][2]["start"] == expected.segments[1].tokens[2].start


def drawn(page: Page) -> int:
    """How many pixels of the waveform are painted."""
    script = """canvas => canvas.getContext("2d")
        .getImageData(0, 0, canvas.width, canvas.height).data.filter((v, i) => i % 4 == 3 && v)
        .length"""
    return int(page.locator("#wave").evaluate(script))


def test_the_microphone_is_transcribed(browser, trained_service, library, tmp_path):
    with opened(browser, trained_service, permissions=["microphone"]) as (page, seen):
        loaded(page)
        page.get_by_role("button", name="Record").click()
        expect(page.locator("#partial")).to_have_text(re.compile("[一二三四五]{3}"))
        page.get_by_role("button", name="Stop").click()
        expect(page.locator("#status")).to_have_text(DONE)
        # What the page sent is what it shows the text of, and what it kept to be played.
        rate = json.loads(seen.starts[0])["sample_rate"]
        wave = np.frombuffer(b"".join(seen.audio), "<i2")
        sf.write(tmp_path / "sent.wav", wave, rate, subtype="PCM_16")
        assert len(wave) > rate / 2 and np.abs(wave).max() > 5000
        if len(wave) < 10 * rate:  # on a busy machine it may have been more than a segment
            expected = library.transcribe(tmp_path / "sent.wav")
            assert text_of(page) == expected.text
            assert downloaded(page, "srt") == FORMATS["srt"](expected)
        assert len(text_of(page)) >= 3
        assert page.locator("#audio").evaluate("a => a.duration") == pytest.approx(
            len(wave) / rate, abs=0.2
        )


@pytest.mark.costly
def test_text_is_shown_while_one_speaks_where_the_model_streams(browser, streaming_bundle):
    streaming = asr.load(streaming_bundle, "cpu")
    clock = "() => performance.now()"
    with (
        running(streaming_bundle) as service,
        opened(browser, service, permissions=["microphone"]) as (page, seen),
    ):
        loaded(page)
        page.get_by_role("button", name="Record").click()
        expect(page.locator("#partial")).to_have_text(re.compile("[一二三四五]{2}"))
        shown = page.evaluate(clock)
        page.wait_for_timeout(1000)
        page.get_by_role("button", name="Stop").click()
        stopped_at = page.evaluate(clock)
        expect(page.locator("#status")).to_have_text(DONE)
        rate = json.loads(seen.starts[0])["sample_rate"]
        found = text_of(page)
    assert shown + 1000 <= stopped_at, "there is text before the speaker ends"
    wave = Recording(asr.Samples(np.frombuffer(b"".join(seen.audio), "<i2"), rate), RATE)
    assert found == "".join(r.text for r in streaming.stream(wave) if r.is_final)
    assert len(found) >= 3


def test_the_recording_is_kept_where_live_text_fails(browser, trained_service):
    with changed(trained_service, max_live_seconds=0.5):
        options = {"permissions": ["microphone"]}
        with opened(browser, trained_service, **options) as (page, seen):
            loaded(page)
            page.get_by_role("button", name="Record").click()
            expect(page.locator("#status")).to_have_text(re.compile("at most 0.5 seconds"))
            page.wait_for_timeout(1500)
            page.get_by_role("button", name="Stop").click()
            expect(page.locator("#status")).to_have_text(DONE)
            assert len(text_of(page)) >= 3
            assert any(url.endswith("/v1/transcribe") for url in seen.urls)


def test_text_and_recording_are_kept_where_the_service_does_not_take_it(browser, trained_service):
    """As after minutes of a dictation whose connection breaks."""
    with changed(trained_service, max_live_seconds=2.0, max_bytes=60_000):
        options = {"permissions": ["microphone"], "accept_downloads": True}
        with opened(browser, trained_service, **options) as (page, seen):
            loaded(page)
            page.get_by_role("button", name="Record").click()
            expect(page.locator("#status")).to_have_text(re.compile("at most 2 seconds"))
            page.get_by_role("button", name="Stop").click()
            expect(page.get_by_role("alert")).to_have_text(re.compile("larger than the 60000 by"))
            assert text_of(page)
            assert not page.get_by_role("button", name="srt").is_visible()
            with page.expect_download() as download:
                page.get_by_role("button", name="Save the recording").click()
            assert sf.info(download.value.path()).duration > 1.9
            seen.problems = [p for p in seen.problems if "status of 413" not in p]


def test_a_recording_leaves_those_that_wait_alone(browser, trained_service, spoken):
    with opened(browser, trained_service, permissions=["microphone"]) as (page, _):
        loaded(page)
        with stopped(trained_service.engine.pid):
            page.set_input_files("#file", [spoken, spoken])
            expect(page.locator("#queue .state")).to_have_text([re.compile("%"), "waiting"])
            page.get_by_role("button", name="Record", exact=True).click()
            expect(page.get_by_role("button", name="Stop")).to_be_visible()
        page.wait_for_timeout(500)
        page.get_by_role("button", name="Stop").click()
        length = re.compile(r"^\d:\d\d$")
        states = page.locator("#queue .state")
        expect(states).to_have_text([length, length, length])
        with stopped(trained_service.engine.pid):
            page.set_input_files("#file", [spoken])
            page.get_by_role("button", name="Record", exact=True).click()
            expect(page.get_by_role("button", name="Stop")).to_be_visible()
            page.locator("#queue button").nth(3).click()
            expect(page.locator("#status")).to_have_text(re.compile("Transcribing"))
            page.locator("#cancel").click()
        page.wait_for_timeout(500)
        page.get_by_role("button", name="Stop").click()
        expect(states).to_have_text([length, length, length, "cancelled", length])


def test_the_keyboard_is_enough(browser, trained_service, library, sentence):
    expected = library.transcribe(sentence)
    with opened(browser, trained_service, reduced_motion="reduce") as (page, _):
        loaded(page)
        page.on("filechooser", lambda chooser: chooser.set_files(sentence))
        stops = []
        for _ in range(4):
            page.keyboard.press("Tab")
            stops.append(focused(page))
        assert stops == ["model", "language", "choose", "record"]
        page.keyboard.press("Shift+Tab")
        page.keyboard.press("Enter")
        expect(page.locator("#status")).to_have_text(DONE)
        while focused(page) != "wave":
            page.keyboard.press("Tab")
            outline = page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
            assert outline == "solid"
        page.keyboard.press("End")
        duration = f"{expected.duration:.1f}"
        expect(page.locator("#wave")).to_have_attribute("aria-valuenow", duration)
        page.keyboard.press("Home")
        expect(page.locator("#wave")).to_have_attribute("aria-valuenow", "0.0")
        while "word" not in focused(page):
            page.keyboard.press("Tab")
        for _ in range(3):
            page.keyboard.press("ArrowRight")
        assert page.evaluate("document.activeElement.textContent") == expected.text[3]
        page.keyboard.press("Enter")
        page.wait_for_timeout(100)
        start = expected.segments[0].tokens[3].start
        assert page.locator("#audio").evaluate("a => a.currentTime") >= start - 0.01
        page.keyboard.press("Tab")
        page.keyboard.press("Enter")
        rows = page.locator("#nbest tbody tr")
        expect(rows).to_have_count(len(expected.nbest))
        texts = [row.split("\t")[0] for row in rows.all_inner_texts()]
        assert texts == [candidate.text or "(nothing)" for candidate in expected.nbest]


def test_files_are_transcribed_one_after_the_other(
    browser, trained_service, library, spoken, sentence, tmp_path
):
    bad = tmp_path / "bad.wav"
    bad.write_text("<!doctype html>")
    files = [spoken, bad, sentence]
    with opened(browser, trained_service) as (page, seen):
        loaded(page)
        page.set_input_files("#file", files)
        rows = page.locator("#queue button")
        expect(rows).to_have_count(3)
        states = page.locator("#queue .state")
        expect(states).to_have_text([re.compile(r"^\d:\d\d$"), "failed", re.compile(r"^\d:\d\d$")])
        assert text_of(page) == library.transcribe(spoken).text, "the first is shown"
        rows.nth(2).click()
        assert text_of(page) == library.transcribe(sentence).text
        expect(page.locator("#name")).to_have_text(sentence.name)
        expect(rows.nth(2)).to_have_attribute("aria-current", "true")
        rows.nth(1).click()
        expect(page.get_by_role("alert")).to_have_text(re.compile("not a recording"))
        assert not page.locator("#result").is_visible()
        rows.nth(0).click()
        assert downloaded(page, "srt") == FORMATS["srt"](library.transcribe(spoken))
        seen.problems = [p for p in seen.problems if "status of 415" not in p]


def test_a_long_file_shows_its_text_and_progress_and_can_be_cancelled(
    browser, trained_service, library, tmp_path
):
    """The engine is stopped after the first segments, so that the page shows them for a while."""
    long = tmp_path / "long.wav"
    sf.write(long, np.concatenate([say(6, seed)[0] for seed in range(300)]), RATE)
    with opened(browser, trained_service) as (page, _):
        loaded(page)
        page.set_input_files("#file", [long, long])
        expect(page.locator("#partial")).to_have_text(re.compile("[一二三四五]{20}"))
        with stopped(trained_service.engine.pid):
            page.wait_for_timeout(300)
            assert 0 < page.locator("#progress").evaluate("p => p.value") < 1
            expect(page.locator("#status")).to_have_text("Transcribing long.wav…")
            expect(page.locator("#queue .state")).to_have_text([re.compile(r"^\d+ %$"), "waiting"])
            page.locator("#cancel").click()
            expect(page.locator("#queue .state")).to_have_text(["cancelled", "cancelled"])
            expect(page.locator("#status")).to_have_text("Cancelled.")
            page.set_input_files("#file", long)  # goes on at once
            expect(page.locator("#queue .state").nth(2)).to_have_text("0 %")
            page.locator("#cancel").click()
    wait_for(lambda: not trained_service.engine._jobs)


def test_it_speaks_chinese(browser, trained_service, sentence):
    with opened(browser, trained_service, locale="zh-CN") as (page, _):
        loaded(page)
        assert page.locator("html").get_attribute("lang") == "zh-CN"
        page.set_input_files("#file", sentence)
        expect(page.locator("#status")).to_have_text(re.compile("^已转写"))
        expect(page.get_by_role("button", name="选择文件")).to_be_visible()
        chinese = page.locator("body").inner_text()
        page.get_by_role("link", name="English").click()
        expect(page.locator("#status")).to_have_text(DONE)
        assert text_of(page) and page.url.endswith("#en")
        shown = page.locator("body").inner_text()
        assert not re.search(
            "[\u4e00-\u9fff]", shown.replace(text_of(page), "").replace("中文", "")
        )
        assert "Transcript" in shown and "Transcript" not in chinese
        page.get_by_role("link", name="中文").click()
        expect(page.get_by_role("button", name="选择文件")).to_be_visible()
        assert page.title() == "语音转文字 · lrt-asr"


def focused(page: Page) -> str:
    return str(
        page.evaluate(
            "(e => e.id || e.className || e.getAttribute('href') || e.tagName)"
            "(document.activeElement)"
        )
    )


def test_it_is_light_or_dark_and_fits_a_phone(browser, trained_service, sentence):
    shades = {}
    for scheme in ("light", "dark"):
        options = {"color_scheme": scheme, "viewport": {"width": 340, "height": 700}}
        with opened(browser, trained_service, **options) as (page, _):
            loaded(page)
            page.set_input_files("#file", sentence)
            expect(page.locator("#segments li")).to_have_count(1)
            shades[scheme] = [
                sum(map(int, re.findall(r"\d+", page.locator(at).evaluate(script))[:3]))
                for at in ("body", "#result")
                for script in ("e => getComputedStyle(e).backgroundColor",
                               "e => getComputedStyle(e).color")
            ]  # fmt: skip
            assert page.evaluate("document.documentElement.scrollWidth") <= 340
    for ground, ink in (shades["light"][:2], shades["light"][2:]):
        assert ground - ink > 500
    for ground, ink in (shades["dark"][:2], shades["dark"][2:]):
        assert ink - ground > 500


def test_errors_have_the_sentences_of_the_service(browser, trained_service, tmp_path):
    bad = tmp_path / "page.wav"
    bad.write_text("<!doctype html>")
    reply = trained_service.post(bad.read_bytes())
    with opened(browser, trained_service) as (page, seen):
        loaded(page)
        page.set_input_files("#file", bad)
        expect(page.get_by_role("alert")).to_have_text(reply.json()["error"]["message"])
        page.get_by_role("button", name="Record").focus()
        # Chromium itself logs every answer of 4xx; and what cannot be decoded cannot be played.
        seen.problems = [p for p in seen.problems if "status of 415" not in p]


@pytest.mark.costly
def test_a_key_is_requested(browser, trained_bundle, sentence):
    with (
        running(trained_bundle, api_keys="höchst 密钥à") as service,
        opened(browser, service, permissions=["microphone"]) as (page, seen),
    ):
        page.get_by_label("This service requires a key").fill("höchst 密钥à")
        page.keyboard.press("Enter")
        loaded(page)
        page.set_input_files("#file", sentence)
        expect(page.locator("#segments li")).to_have_count(1)
        page.get_by_role("button", name="Record").click()
        expect(page.locator("#partial")).to_have_text(re.compile("."))
        seen.problems = [p for p in seen.problems if "status of 401" not in p]
