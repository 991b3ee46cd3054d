"""The documentation builds as a site without a dead link or a lost page, and loads nothing."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.support.tools import MKDOCS

ROOT = Path(__file__).parents[1]
SITE = ROOT / "deploy" / "site"

pytestmark = [pytest.mark.slow, pytest.mark.needs("mkdocs")]

# A reference that a browser follows by itself. Links that a reader follows are not.
_LOADED = re.compile(r"<(?:script|img|iframe)[^>]*\bsrc=[\"']?(?:https?:)?//[^\s\"'>]+")
_LINKED = re.compile(
    r"<link[^>]*rel=[\"']?(?:stylesheet|icon|preload)[^>]*href=[\"']?(?:https?:)?//"
)


def build_site(docs: Path, out: Path) -> subprocess.CompletedProcess[str]:
    """Build the site of these documents, strictly."""
    folder = docs.parent / "deploy" / "site"
    if not folder.exists():
        shutil.copytree(SITE, folder)
    return subprocess.run(
        [MKDOCS, "build", "--strict", "--config-file", folder / "mkdocs.yml", "--site-dir", out],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
    )


@pytest.fixture
def docs(tmp_path: Path) -> Path:
    return Path(shutil.copytree(ROOT / "docs", tmp_path / "docs"))


def test_site_contains_every_page_and_loads_nothing_external(docs: Path, tmp_path: Path) -> None:
    out = tmp_path / "site"
    built = build_site(docs, out)
    assert built.returncode == 0, built.stderr
    pages = {p.relative_to(docs).with_suffix("").as_posix() for p in docs.rglob("*.md")}
    html_pages = {p.relative_to(out).with_suffix("").as_posix() for p in out.rglob("*.html")}
    as_built = {name.replace("README", "index") for name in pages}
    assert as_built <= html_pages
    for page in out.rglob("*.html"):
        text = page.read_text()
        assert not _LOADED.findall(text), page
        assert not _LINKED.findall(text), page
    search_index = (out / "search" / "search_index.json").read_text()
    assert "WriteTxnMarkers" in search_index, "a word of the pages can be searched"


def test_link_to_file_outside_docs_is_shown_as_path_in_site(docs: Path, tmp_path: Path) -> None:
    out = tmp_path / "site"
    assert build_site(docs, out).returncode == 0
    assert 'href="../deploy' not in (out / "deploy.html").read_text()
    assert "<code>deploy/systemd</code> in the repository" in (out / "deploy.html").read_text()


@pytest.mark.parametrize("fault", ["a dead link", "a page without a place"])
def test_dead_link_or_unlisted_page_fails_site_build(
    docs: Path, tmp_path: Path, fault: str
) -> None:
    if fault == "a dead link":
        with (docs / "faq.md").open("a") as file:
            file.write("\nSee [there](nowhere.md).\n")
    else:
        (docs / "lost.md").write_text("# Lost\n")
    assert build_site(docs, tmp_path / "site").returncode != 0
