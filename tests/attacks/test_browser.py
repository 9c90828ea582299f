"""Pages of other sites in a real browser, whose names lead to this machine."""

import shutil
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from playwright.sync_api import Browser, expect, sync_playwright

from tests.helpers import URL, Service, beeps, encode_audio, refused

CHROMIUM = shutil.which("chromium")
pytestmark = pytest.mark.skipif(
    not CHROMIUM, reason="there is no chromium: apt-get install chromium"
)

# What a page tries with a service at an address: what it can read, and whether a session opens.
TRY = """async ([base, url]) => {
    const read = async (path, options) => {
        try { return await (await fetch(base + path, options)).text() } catch { return "" }
    };
    const form = new FormData();
    form.append("model", "tiny");
    form.append("file", new Blob([new Uint8Array(%s)]), "a.wav");
    const opened = new Promise((resolve) => {
        const live = new WebSocket(base.replace("http", "ws") + "/v1/live");
        live.onopen = () => resolve("opened");
        live.onerror = () => resolve("");
    });
    return [
        await opened,
        await read("/v1/models"),
        await read(url, {method: "POST", body: form}),
        await read(url, {method: "POST", body: form, mode: "no-cors"}),
    ];
}"""
WAV = list(encode_audio(beeps(1, 0.2)))


class Empty(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("content-type", "text/html")
        self.end_headers()
        self.wfile.write(b"<!doctype html><title>elsewhere</title>")

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture(scope="module")
def elsewhere() -> Iterator[int]:
    """The port of another site."""
    with ThreadingHTTPServer(("127.0.0.1", 0), Empty) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server.server_port
        server.shutdown()
        thread.join()


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    rules = "--host-resolver-rules=MAP *.example 127.0.0.1"
    with sync_playwright() as playwright:
        arguments = ["--no-sandbox", rules]
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=arguments)
        yield browser
        browser.close()


def attempts(browser: Browser, address: str, base: str) -> list[str]:
    """What a page at the address gets of the service at `base`."""
    page = browser.new_page()
    try:
        page.goto(address)
        found: list[str] = page.evaluate(TRY % WAV, [base, URL])
        return found
    finally:
        page.close()


def n_decoded(service: Service) -> float:
    return service.metric("asr_audio_seconds_total")


@pytest.mark.parametrize("site", ["http://evil.example", "http://localhost"])
def test_a_page_of_another_site_can_do_nothing(browser, service, elsewhere, site):
    """S4: it opened live sessions and posted recordings."""
    before = n_decoded(service)
    base = f"http://{service.host}:{service.port}"
    assert attempts(browser, f"{site}:{elsewhere}", base) == ["", "", "", ""]
    assert n_decoded(service) == before


def test_a_name_that_now_leads_here_opens_nothing(browser, service):
    """S4: after DNS rebinding, the page of another site has the origin of the service."""
    before = n_decoded(service)
    base = f"http://evil.example:{service.port}"
    opened, *read = attempts(browser, base, base)
    assert not opened and n_decoded(service) == before
    assert all("tiny" not in text for text in read)
    assert "ASR_ALLOWED_HOSTS" in read[0]
    reply = service.client.get("/v1/models", headers={"origin": "http://evil.example"})
    assert "ASR_CORS_ORIGINS" in refused(reply, 403, None, "origin_not_allowed")


def test_the_service_s_own_page_does_all(browser, service):
    """S4: by its address and by localhost."""
    for host in (service.host, "localhost"):
        base = f"http://{host}:{service.port}"
        opened, models, text, _ = attempts(browser, base, base)
        assert opened and "tiny" in models and '"text"' in text


def test_the_document_is_a_page_of_its_own(browser, service):
    """M1: a browser loads nothing else for it than its style."""
    base = f"http://{service.host}:{service.port}"
    page, urls, problems = browser.new_page(), [], []
    page.on("request", lambda request: urls.append(request.url))
    page.on("console", lambda message: problems.append(message.text))
    page.goto(f"{base}/docs")
    expect(page.get_by_role("heading", name=f"POST {URL}")).to_be_visible()
    page.close()
    assert set(urls) <= {f"{base}/docs", f"{base}/page/style.css", f"{base}/page/icon.svg"}
    assert not problems
