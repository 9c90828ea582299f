"""The glossary's words stand nowhere: not in code, documents, recipes or help texts."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
# Written in parts, so that this file does not hold them either.
WORDS = [
    "he" + "ars?", "he" + "ard", "sett" + "led?", "men" + "ds?", "spe" + "lt", "comp" + "any",
    "nob" + "ody", "tal" + "ly", "jud" + "ged", "keep" + "_BS", "make" + "_thin", "try" + "_out",
    "some" + "_waves", "usual" + "_seconds",
]  # fmt: skip
FORBIDDEN = re.compile(rf"\b(?:{'|'.join(WORDS)})\b", re.IGNORECASE)
TYPE = re.compile(r"\bGo" + r"ne\b|\bgo" + r"ne=")


def findings(text: str) -> list[str]:
    """Return the lines that hold a word of the glossary."""
    return [line for line in text.splitlines() if FORBIDDEN.search(line) or TYPE.search(line)]


def tracked() -> list[Path]:
    """Return all tracked files of code, documents and recipes, but the changelog."""
    command = ["git", "ls-files", "*.py", "*.md", "*.js", "*.yaml"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    paths = [ROOT / line for line in listed.splitlines()]
    return [path for path in paths if path.name != "CHANGELOG.md" and path.exists()]


def test_the_pattern_finds_what_it_should() -> None:
    assert (
        findings("what was he" + "ard")
        and findings("cancelled=Go" + "ne")
        and findings("Tal" + "ly()")
    )
    assert not findings("shear, settlement, amendment, recommend, accompany")


def test_no_tracked_file_holds_a_word_of_the_glossary() -> None:
    found = {str(p.relative_to(ROOT)): findings(p.read_text("utf-8")) for p in tracked()}
    assert not {name: lines for name, lines in found.items() if lines}


def commands() -> list[list[str]]:
    """Return every command and subcommand of the command line."""
    import typer.main

    from asr.cli import app

    def walk(group, prefix):
        yield prefix
        for name, command in getattr(group, "commands", {}).items():
            yield from walk(command, [*prefix, name])

    return list(walk(typer.main.get_command(app), []))


@pytest.mark.parametrize("command", commands(), ids=lambda c: " ".join(c) or "asr")
def test_no_help_text_holds_a_word_of_the_glossary(command: list[str]) -> None:
    code = "from asr.cli import main; main()"
    run = [sys.executable, "-c", code, *command, "--help"]
    shown = subprocess.run(run, capture_output=True, text=True, check=True, cwd=ROOT).stdout
    assert shown and not findings(shown)
