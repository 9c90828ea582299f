"""Drive the page of a service or of `--format html` in Debian's Chromium; the tests do it too."""

import base64
import re
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from playwright.sync_api import Browser, Page, expect, sync_playwright

CHROMIUM = shutil.which("chromium")
DONE = re.compile("of audio transcribed")
# Takes files as a mouse would drop them: [name, base64] each.
_DROP = """files => {
    const dropped = new DataTransfer();
    for (const [name, content] of files)
        dropped.items.add(new File([Uint8Array.from(atob(content), c => c.charCodeAt())], name));
    return dropped;
}"""


@contextmanager
def chromium(spoken: Path) -> Iterator[Browser]:
    """Start Chromium, whose microphone plays a WAV file again and again."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=CHROMIUM,
            args=[
                "--no-sandbox", "--use-fake-device-for-media-stream",
                "--use-fake-ui-for-media-stream", f"--use-file-for-fake-audio-capture={spoken}",
            ],
        )  # fmt: skip
        yield browser
        browser.close()


@dataclass
class Seen:
    """What a browser did behind a page: problems, requested URLs, and what a live session sent."""

    problems: list[str] = field(default_factory=list)
    urls: list[str] = field(default_factory=list)
    audio: list[bytes] = field(default_factory=list)
    starts: list[str] = field(default_factory=list)

    def watch(self, page: Page) -> None:
        """Note the errors and requests of a page, and what its live session sends."""
        page.on("pageerror", lambda error: self.problems.append(str(error)))
        page.on("console", lambda message: self.problems.append(message.text))
        page.on("request", lambda request: self.urls.append(request.url))
        page.on("websocket", lambda socket: socket.on("framesent", self._send))

    def _send(self, payload: str | bytes) -> None:
        if isinstance(payload, bytes):
            self.audio.append(payload)
        else:
            self.starts.append(payload)

    def left(self, file: Path) -> list[str]:
        """Return the requested URLs that are not of the page, which is the file `file`."""
        own = (file.as_uri(), "blob:null/", "data:")
        return [url for url in self.urls if not url.startswith(own)]


def drop(page: Page, files: Sequence[Path]) -> None:
    """Drag files over the page and drop them."""
    content = [[file.name, base64.b64encode(file.read_bytes()).decode()] for file in files]
    dropped = page.evaluate_handle(_DROP, content)
    for event in ("dragover", "drop"):
        page.dispatch_event("#drop", event, {"dataTransfer": dropped})


def text_of(page: Page) -> str:
    """Return the text that is shown."""
    return "".join(page.locator("#segments .text").all_inner_texts())


def downloaded(page: Page, form: str) -> str:
    """Click the button of a format; return the content of the downloaded file."""
    with page.expect_download() as download:
        page.get_by_role("button", name=form, exact=True).click()
    assert download.value.suggested_filename.endswith(f".{form}")
    return Path(download.value.path()).read_text("utf-8")


def keep_recordings(page: Page) -> None:
    """Keep what a page not yet opened will make URLs of; `recorded` returns the last recording."""
    page.add_init_script(
        "window.made = []; const make = URL.createObjectURL;"
        "URL.createObjectURL = (blob) => { made.push(blob); return make(blob); };"
    )


def recorded(page: Page) -> bytes:
    """Return the recording of the microphone."""
    content = page.evaluate(
        "made.findLast((blob) => blob.name).arrayBuffer().then((b) => [...new Uint8Array(b)])"
    )
    return bytes(content)


def dictate(page: Page, seconds: int) -> None:
    """Record for so many seconds, and wait for the text."""
    page.get_by_role("button", name="Record").click()
    expect(page.locator("#elapsed")).to_have_text(f"0:{seconds:02}")
    page.get_by_role("button", name="Stop").click()
    expect(page.locator("#status")).to_have_text(DONE)
