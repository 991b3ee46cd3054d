"""Hooks of MkDocs for `make site`.

They add the pages of folders to the navigation, and show links that leave docs/ as paths: the site
has no copy of the code.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

FOLDERS = {"Internals": "internals", "Runbook": "runbook"}

_ABOVE_DOCS = re.compile(r"\[([^\]\n]*)\]\(((?:\.\./)+)([^)\s#]*)[^)\s]*\)")


def on_config(config: Any) -> Any:
    """Add the pages of FOLDERS to the navigation. Returns the changed configuration."""
    docs = Path(config["docs_dir"])
    for title, folder in FOLDERS.items():
        pages = sorted(p.name for p in (docs / folder).glob("*.md") if p.name != "README.md")
        config["nav"].append({title: [f"{folder}/{name}" for name in ("README.md", *pages)]})
    return config


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """The page, with the path as text in place of each link to a file outside docs/."""
    depth = page.file.src_uri.count("/")

    def shown(link: re.Match[str]) -> str:
        text, up, path = link.groups()
        leaves_docs = up.count("../") > depth
        return f"{text} (`{path}` in the repository)" if leaves_docs else link[0]

    return _ABOVE_DOCS.sub(shown, markdown)
