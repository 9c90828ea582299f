"""Compare texts of a page of `--format html` in Chromium with the recognizer's, and time the page.

    python -m benchmarks.page BUNDLE CUTS [--most 100] [--record]

The page is opened from the disk, in headless Chromium without a network. CUTS are dropped on it as
WAV files, all at once, and each text is compared with that of `asr transcribe --method ctc_beam`.
Chromium's microphone plays one of them, and the text of what the page recorded is compared too:
with `model.stream` where the bundle streams, since the page then has live text.

Times are those of 4.5 s of audio, from the drop to the text, reading of the waveform included:
processor time of all processes of Chromium, and time by the clock, which other work on the machine
makes longer. They are medians of ten drops after the first.
"""

import argparse
import re
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import psutil
import soundfile as sf
from playwright.sync_api import Browser, Page, expect

import asr
from asr.audio.recording import Recording
from asr.bundle import Bundle
from asr.data.manifest import load_cuts
from asr.export.calibration import utterances
from asr.export.html import export_html, options_of
from asr.transcription.recognizer import Recognizer
from benchmarks import record
from benchmarks.chromium import (
    Seen,
    chromium,
    dictate,
    drop,
    keep_recordings,
    recorded,
    text_of,
)
from benchmarks.record import Result, Value

TIMED_SECONDS, TIMES = 4.5, 11
FINISHED = re.compile(r"^\d+:\d\d$|^failed$")
MINUTES = 60_000  # ms, Playwright's unit


def written(bundle: Bundle, cuts: Path, most: int, folder: Path) -> list[Path]:
    """Write utterances as WAV files to a folder; return their paths."""
    paths, chosen = list[Path](), list(load_cuts(cuts))
    chosen = chosen[:: max(1, len(chosen) // most)][:most]
    for cut, wave, _ in utterances(bundle, chosen):
        paths.append(folder / f"{len(paths):04}-{cut.id}.wav")
        sf.write(paths[-1], wave, bundle.config.features.sample_rate)
    return paths


def open_page(browser: Browser, file: Path, seen: Seen) -> Page:
    """Return a page that has its model."""
    context = browser.new_context(permissions=["microphone"])
    context.set_offline(True)
    context.set_default_timeout(30 * MINUTES)
    page = context.new_page()
    keep_recordings(page)
    seen.watch(page)
    page.goto(file.as_uri())
    expect(page.locator("#model")).to_be_enabled()
    return page


def dropped_texts(page: Page, paths: list[Path]) -> Iterator[str]:
    """Drop files and yield the text of each."""
    drop(page, paths)
    states = page.locator("#queue .state")
    expect(states.last).to_have_text(FINISHED, timeout=30 * MINUTES)
    for i in range(len(paths)):
        assert states.nth(i).inner_text() != "failed", paths[i]
        page.locator("#queue button").nth(i).click()
        yield text_of(page)


def spoken_text(page: Page, folder: Path) -> tuple[str, Path]:
    """Return the text of what the microphone plays, and the recording of the page."""
    dictate(page, 2)
    path = folder / "recorded.wav"
    path.write_bytes(recorded(page))
    return text_of(page), path


def processor_seconds() -> float:
    """Return the processor time of Chromium's processes, in seconds."""
    found = 0.0
    for process in psutil.Process().children(recursive=True):
        times = process.cpu_times()
        found += times.user + times.system if "chrom" in process.name() else 0
    return found


def times(page: Page, path: Path) -> list[tuple[float, float]]:
    """Return the seconds of the processor and of the clock, for each time a file is dropped."""
    found = []
    for i in range(TIMES):
        cpu, clock = processor_seconds(), time.perf_counter()
        drop(page, [path])
        page.wait_for_function(
            "n => [...document.querySelectorAll('#queue .state')].filter("
            "e => /^\\d+:\\d\\d$/.test(e.textContent)).length > n", arg=i, polling=5
        )  # fmt: skip
        found.append((processor_seconds() - cpu, time.perf_counter() - clock))
        page.wait_for_timeout(300)
    return found


def same(model: Recognizer, bundle: Bundle, paths: list[Path], texts: list[str]) -> int:
    """Return how many texts are the same as the recognizer's."""
    options = options_of(bundle)
    return sum(model.transcribe(p, options).text == t for p, t in zip(paths, texts, strict=True))


def same_of_the_microphone(model: Recognizer, bundle: Bundle, path: Path, text: str) -> bool:
    """Tell whether the recognizer has this text for a recording, streamed if the bundle streams."""
    if bundle.config.model.encoder.streaming is None:
        return bool(same(model, bundle, [path], [text]))
    results = model.stream(Recording(path, model.sample_rate), options_of(bundle))
    return text == "".join(result.text for result in results if result.is_final)


def main() -> None:
    """Write the page, open it, and compare."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("bundle", type=Path)
    parser.add_argument("cuts", type=Path)
    parser.add_argument("--most", type=int, default=100)
    parser.add_argument("--title", default="")
    record.add_option(parser)
    args = parser.parse_args()
    bundle, seen = Bundle.load(args.bundle), Seen()
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        file = folder / "page.html"
        n_bytes = export_html(bundle, args.bundle.name, file)
        paths = written(bundle, args.cuts, args.most, folder)
        waves = [sf.read(path)[0] for path in paths]
        rate = bundle.config.features.sample_rate
        timed = np.resize(np.concatenate(waves), round(TIMED_SECONDS * rate))
        sf.write(folder / "timed.wav", timed, rate)
        longest = max(paths, key=lambda path: path.stat().st_size)
        with chromium(longest) as browser:
            texts = list(dropped_texts(open_page(browser, file, seen), paths))
            record.progress("texts are there")
            spoken, recording = spoken_text(open_page(browser, file, seen), folder)
            taken = times(open_page(browser, file, seen), folder / "timed.wav")
        model = asr.load(args.bundle, "cpu")
        row: list[Value] = [n_bytes / 1e6, len(paths), same(model, bundle, paths, texts)]
        row.append(int(same_of_the_microphone(model, bundle, recording, spoken)))
    assert not seen.problems, seen.problems
    row += [len(seen.urls), len(seen.left(file))]
    medians = [statistics.median(column) for column in zip(*taken[1:], strict=True)]
    row += [1000 * seconds for seconds in (taken[0][0], *medians)]
    columns = {
        "MB": ".2f", "utterances": "d", "same texts": "d", "same of the microphone": "d",
        "requests": "d", "that left the page": "d", "first 4.5 s: CPU ms": ".0f",
        "then: CPU ms": ".0f", "then: ms": ".0f",
    }  # fmt: skip
    note = f"The text of the microphone was “{spoken}”."
    title = f"One HTML file: {args.title or args.bundle.name}"
    record.publish(args, "page", [Result(title=title, note=note, columns=columns, rows=[row])])


if __name__ == "__main__":
    main()
