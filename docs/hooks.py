"""Let pages link to files of the repository that are no pages, such as a recipe's README.

In the site such a link becomes the file's path. A link to a file that does not exist is a warning,
which `mkdocs build --strict` turns into an error.
"""

import logging
import re
from pathlib import Path
from typing import Any

_ROOT = Path(__file__).parent.parent
_LINK = re.compile(r"(?<!!)\[([^\]]+)\]\((\.\./[^)#\s]+)(#[^)\s]*)?\)")
_LOG = logging.getLogger("mkdocs.hooks")


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Replace the links that leave docs/ by the path that they lead to."""
    folder = _ROOT / "docs" / Path(page.file.src_uri).parent

    def replace(link: re.Match[str]) -> str:
        target = (folder / link[2]).resolve()
        if not target.exists():
            _LOG.warning("%s links to %s, which does not exist", page.file.src_uri, link[2])
        path = target.relative_to(_ROOT.resolve()).as_posix()
        return f"`{path}`" if link[1] in path else f"{link[1]} (`{path}`)"

    return _LINK.sub(replace, markdown)
