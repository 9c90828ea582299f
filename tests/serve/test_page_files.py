"""The page's files without a browser: headers, translations, the script of the audio thread."""

import json
import re
import shutil
import subprocess
from pathlib import Path

import httpx
import pytest

import serve

PAGE = Path(serve.__file__).parent / "page"
NODE = shutil.which("node")


def test_nothing_but_the_page_is_there(trained_service):
    base = f"http://{trained_service.host}:{trained_service.port}"
    page = httpx.get(base)
    policy = page.headers["content-security-policy"]
    assert "script-src 'self'" in policy and "default-src 'none'" in policy
    assert "unsafe" not in policy and "<script>" not in page.text and " style=" not in page.text
    assert page.headers["x-content-type-options"] == "nosniff"
    for name in ("../page.py", "..%2fpage.py", "%2e%2e/page.py", "x.js"):
        assert httpx.get(f"{base}/page/{name}").status_code == 404
    for name in re.findall(r'(?:src|href)="(page/[^"]+)"', page.text):
        assert httpx.get(f"{base}/{name}").is_success


def test_every_sentence_has_a_translation():
    known = set(re.findall(r'^  "(.+?)":', (PAGE / "i18n.js").read_text("utf-8"), re.M))
    used = re.findall(r">([A-Z][^<>]{2,})<", (PAGE / "index.html").read_text("utf-8"))
    for script in PAGE.glob("*.js"):
        used += re.findall(r'\b(?:t|say)\("(.+?)"[,)]', script.read_text("utf-8"))
    assert len(used) > 20
    missing = {u for u in used if u not in known and not u.startswith("This page needs JavaScript")}
    assert not missing


CAPTURE = """
globalThis.sampleRate = 8000;
const posted = [];
globalThis.AudioWorkletProcessor = class {
  port = { postMessage: ({ samples, peak, isLast }) => posted.push([[...samples], peak, isLast]) };
};
globalThis.registerProcessor = (_, Capture) => (globalThis.Capture = Capture);
CODE
const capture = new Capture();
for (let n = 0; n < 8; n++) capture.process([[new Float32Array(128).fill(n / 8)]]);
capture.port.onmessage();
capture.process([[new Float32Array(128)]]);
capture.port.onmessage();
process.stdout.write(JSON.stringify(posted));
"""


@pytest.mark.skipif(not NODE, reason="there is no node: apt-get install nodejs")
def test_a_recording_holds_all_samples_until_its_end() -> None:
    code = CAPTURE.replace("CODE", (PAGE / "capture.js").read_text("utf-8"))
    done = subprocess.run([str(NODE), "-e", code], capture_output=True, text=True, check=True)
    blocks = json.loads(done.stdout)
    assert [(len(samples), is_last) for samples, _, is_last in blocks] == [
        (800, False), (224, True), (128, True),
    ]  # fmt: skip
    samples = [x for block, _, _ in blocks for x in block]
    assert samples[:1024] == [round(n / 8 * 32767) for n in range(8) for _ in range(128)]
    assert [peak for _, peak, _ in blocks] == [6 / 8, 7 / 8, 0]
