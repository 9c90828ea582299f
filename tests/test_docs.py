"""The documents' links lead somewhere; docs/ itself is checked by `make docs` too."""

import re
import subprocess
from pathlib import Path
from typing import Any, get_args

import pytest

from asr.model.attention import _Any, _Causal

ROOT = Path(__file__).parent.parent
LINK = re.compile(r"(?<!\\)\]\(([^)\s]+)\)")
CODE = re.compile(r"^```.*?^```|`[^`\n]*`", re.MULTILINE | re.DOTALL)


def _pages() -> list[str]:
    listed = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard", "*.md"],
        cwd=ROOT, capture_output=True, text=True, check=True,
    )  # fmt: skip
    return [name for name in listed.stdout.splitlines() if (ROOT / name).is_file()]


def _anchors(page: Path) -> set[str]:
    """Return the anchors of a page's headings, as forges and mkdocs make them."""
    text = re.sub(r"^```.*?^```", "", page.read_text("utf-8"), flags=re.MULTILINE | re.DOTALL)
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    plain = (re.sub(r"[^\w\s-]", "", heading.lower()).strip() for heading in headings)
    return {re.sub(r"\s+", "-", heading) for heading in plain}


@pytest.mark.parametrize("name", _pages())
def test_relative_links_lead_to_files_and_headings(name: str) -> None:
    page = ROOT / name
    for link in LINK.findall(CODE.sub("", page.read_text("utf-8"))):
        if "://" in link:
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), f"{name}: {link}"
        if anchor:
            assert anchor in _anchors(target), f"{name}: {link}"


def test_readme_fits_on_a_screen_and_every_page_is_listed() -> None:
    assert len((ROOT / "README.md").read_text("utf-8").splitlines()) <= 90
    listed = (ROOT / "mkdocs.yml").read_text("utf-8")
    for page in (ROOT / "docs").glob("*.md"):
        assert f": {page.name}\n" in listed, page.name


def _kinds(config: Any) -> tuple[str, ...]:
    return get_args(config.model_fields["kind"].annotation)


def test_each_attention_is_listed_with_its_options_and_its_source() -> None:
    page = (ROOT / "docs/attention.md").read_text("utf-8")
    rows = [line.strip("| ").split("|") for line in page.splitlines() if line.startswith("| `")]
    listed = {row[0].strip(" `"): [cell.strip() for cell in row[1:]] for row in rows}
    causal, configs = (
        {kind: config for config in get_args(union) for kind in _kinds(config)}
        for union in (_Causal, _Any)
    )
    assert set(listed) == set(configs)
    for kind, (_, options, decoder, source) in listed.items():
        known = set(configs[kind].model_fields) - {"kind"}
        assert set(re.findall(r"`(\w+)`", options)) <= known, kind
        assert decoder == ("yes" if kind in causal else ""), kind
        assert re.search(r"\d{4}|slides", source), kind
