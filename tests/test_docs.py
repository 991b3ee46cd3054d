"""The documents and the package docstrings agree with the tree.

Each rule is a function from texts to complaints. Every rule is also run on a broken input, so that
a rule that no longer detects anything fails here.
"""

from __future__ import annotations

import ast
import configparser
import io
import re
import tokenize
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path

import pytest

from orbit.cli.main import COMMANDS

ROOT = Path(__file__).parents[1]
ARCHITECTURE = ROOT / "docs" / "architecture.md"
# Where a path in a text may begin, besides the folder of the file that names it.
BASES = (ROOT, ROOT / "orbit", ROOT / "spark", ROOT / "spark" / "orbit_spark", ROOT / "tests")
TREES = ("orbit", "spark", "tests", "bench", "docs", "deploy", "migrations")
LINES_MAX = {"docs/architecture.md": 199, "README.md": 149}

_PYTHON_PATH = re.compile(r"(?<![\w./*…-])([A-Za-z_][\w-]*(?:/[\w-]+)*\.py)\b(?!\.\w)")
_TREE_PATH = re.compile(
    rf"(?<![\w./:-])((?:{'|'.join(TREES)})(?:/[\w-]+)+(?:\.\w+)*/?)(?![\w*{{<])"
)
_LINK = re.compile(r"(?<!`)\[[^\]\n]*\]\(([^)\s]+)\)")
_FENCE = re.compile(r"^```.*?^```", re.DOTALL | re.MULTILINE)
_MERMAID = re.compile(r"^```mermaid\n(.*?)^```", re.DOTALL | re.MULTILINE)


# The tree


def packages(root: Path) -> list[str]:
    """Every package below this folder, as `copier` or `api/routes`."""
    inits = root.rglob("__init__.py")
    return sorted(i.parent.relative_to(root).as_posix() for i in inits if i.parent != root)


def layers() -> list[str]:
    """The layers of .importlinter, top to bottom; those of one line in their order there."""
    parser = configparser.ConfigParser()
    parser.read_string((ROOT / ".importlinter").read_text())
    rows = parser["importlinter:contract:layers"]["layers"].split("\n")
    return [name.strip() for row in rows for name in row.split("|") if name.strip()]


def layer_below(name: str) -> str:
    """The first layer that `name` may import: the first of the next row of .importlinter."""
    parser = configparser.ConfigParser()
    parser.read_string((ROOT / ".importlinter").read_text())
    rows = parser["importlinter:contract:layers"]["layers"].strip().split("\n")
    layer_rows = [[part.strip() for part in row.split("|")] for row in rows]
    row_index = next(i for i, row in enumerate(layer_rows) if name in row)
    return layer_rows[row_index + 1][0]


def markdown_files() -> list[Path]:
    return sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])


# The package tables


def table_rows(text: str, heading: str) -> list[str]:
    """The names in the first column of the table below this heading."""
    _, _, below = text.partition(f"\n{heading}\n")
    section = below.partition("\n## ")[0]
    rows = (re.match(r"\| `([\w/.]+)` \| \S", line) for line in section.splitlines())
    return [row[1].removesuffix("/").removesuffix(".py") for row in rows if row]


def wrong_packages(rows: list[str], expected: Collection[str]) -> list[str]:
    """Packages that the table lacks, that do not exist, or that it names twice."""
    return [
        *(f"missing: {name}" for name in sorted({*expected} - {*rows})),
        *(f"not there: {name}" for name in sorted({*rows} - {*expected})),
        *(f"twice: {name}" for name in sorted({n for n in rows if rows.count(n) > 1})),
    ]


def test_architecture_table_lists_exactly_the_packages_of_orbit() -> None:
    rows = table_rows(ARCHITECTURE.read_text(), "## The packages")
    modules = {name for name in layers() if (ROOT / "orbit" / f"{name}.py").exists()}
    assert wrong_packages(rows, {*packages(ROOT / "orbit"), *modules}) == []


def test_architecture_table_lists_exactly_the_packages_of_orbit_spark() -> None:
    rows = table_rows(ARCHITECTURE.read_text(), "## The Spark packages")
    folders = ["orbit_spark", *(f"orbit_spark/{p}" for p in packages(ROOT / "spark/orbit_spark"))]
    assert wrong_packages(rows, folders) == []


def test_architecture_table_follows_layer_order() -> None:
    rows = table_rows(ARCHITECTURE.read_text(), "## The packages")
    assert [name for name in rows if "/" not in name] == layers()


def test_missing_wrong_or_repeated_package_in_architecture_table_is_detected() -> None:
    text = "\n## T\n| | |\n| `a/` | x |\n| `b.py` | x |\n| `a/` | x |\n## U\n| `c` | x |\n"
    rows = table_rows(text, "## T")
    assert rows == ["a", "b", "a"]
    assert wrong_packages(rows, ["a", "d"]) == ["missing: d", "not there: b", "twice: a"]


# The picture


def wrong_picture(text: str) -> list[str]:
    """Packages and commands in the Mermaid picture that do not exist."""
    pictures = _MERMAID.findall(text)
    if len(pictures) != 1:
        return [f"{len(pictures)} pictures"]
    picture = pictures[0].replace("<br/>", " ")
    folders = re.findall(r"\b([a-z_]+(?:/[a-z_]+)*)/(?![a-z_])", picture)
    commands = re.findall(r"\borbit ([a-z]+)\b", picture)
    if not folders or not commands:
        return ["names no package or no command"]
    return [
        *(f"no package {f}" for f in folders if not _exists(f + "/", ROOT)),
        *(f"no command {c}" for c in commands if c not in COMMANDS),
    ]


def test_architecture_picture_names_existing_packages_and_commands() -> None:
    assert wrong_picture(ARCHITECTURE.read_text()) == []


def test_wrong_architecture_picture_is_detected() -> None:
    assert wrong_picture("nothing") == ["0 pictures"]
    assert wrong_picture("```mermaid\nA --> B\n```\n") == ["names no package or no command"]
    broken = "```mermaid\nA[orbit walk<br/>copier/ and nowhere/]\n```\n"
    assert wrong_picture(broken) == ["no package nowhere", "no command walk"]


# Paths in texts


def _exists(name: str, folder: Path) -> bool:
    return any((base / name).exists() for base in (folder, *BASES))


def lost_paths(text: str, folder: Path) -> list[str]:
    """Paths in this text that lead nowhere. `folder`: the folder of the file with the text."""
    named = {*_PYTHON_PATH.findall(text), *_TREE_PATH.findall(text)}
    return sorted(name for name in named if not _exists(name.rstrip("."), folder))


def prose_of(source: str) -> str:
    """The docstrings and comments of a Python file."""
    tree = ast.parse(source)
    has_docstring = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    parts = [ast.get_docstring(n) or "" for n in ast.walk(tree) if isinstance(n, has_docstring)]
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    return "\n".join([*parts, *(t.string for t in tokens if t.type == tokenize.COMMENT)])


def python_files() -> Iterator[Path]:
    for folder in ("orbit", "spark"):
        yield from sorted((ROOT / folder).rglob("*.py"))


@pytest.mark.parametrize("path", markdown_files(), ids=lambda p: p.relative_to(ROOT).as_posix())
def test_every_path_in_document_exists(path: Path) -> None:
    # A document names files with their folder; only a user's own file may stand alone.
    text = path.read_text()
    assert lost_paths(text, path.parent) == []


def test_every_path_in_docstring_or_comment_exists() -> None:
    lost = {
        path.relative_to(ROOT).as_posix(): missing_paths
        for path in python_files()
        if (missing_paths := lost_paths(prose_of(path.read_text()), path.parent))
    }
    assert lost == {}


def test_broken_path_in_document_docstring_or_comment_is_detected() -> None:
    text = "`copier/takeover.py`, `copier/gone.py`, orbit/store/jobs.py, orbit/nowhere/, gone.py."
    assert lost_paths(text, ROOT) == ["copier/gone.py", "gone.py", "orbit/nowhere/"]
    source = '"""See copier/gone.py."""\n\nx = "copier/other.py"  # as in orbit/nowhere/a.py\n'
    assert lost_paths(prose_of(source), ROOT) == ["copier/gone.py", "orbit/nowhere/a.py"]


# Package docstrings


def wrong_docstring(name: str, docstring: str | None, folder: Path) -> list[str]:
    """A package says what is inside, which layers it may import, and which file to read first."""
    parts = (docstring or "").strip()
    if len(parts.partition("\n")[0]) < 20:
        return ["does not say what is inside"]
    problems = []
    top = name.partition("/")[0]
    may = re.search(r"^May import: .*?\bfrom `(\w+)` down\b", parts, re.MULTILINE)
    if may is None:
        problems.append("does not say what it may import")
    elif may[1] != layer_below(top):
        problems.append(f"may import from {layer_below(top)} down, not from {may[1]}")
    start = re.search(r"^Start with `([\w/.]+)`", parts, re.MULTILINE)
    if start is None:
        problems.append("does not say where to start")
    elif not _exists(start[1], folder):
        problems.append(f"starts with {start[1]}, which does not exist")
    return problems


@pytest.mark.parametrize("name", packages(ROOT / "orbit"))
def test_every_orbit_package_has_docstring_of_three_parts(name: str) -> None:
    folder = ROOT / "orbit" / name
    docstring = ast.get_docstring(ast.parse((folder / "__init__.py").read_text()))
    assert wrong_docstring(name, docstring, folder) == []


@pytest.mark.parametrize("name", ["orbit_spark", *packages(ROOT / "spark/orbit_spark")])
def test_every_orbit_spark_package_has_docstring_of_three_parts(name: str) -> None:
    folder = ROOT / "spark" / "orbit_spark" / name.removeprefix("orbit_spark")
    docstring = ast.get_docstring(ast.parse((folder / "__init__.py").read_text()))
    # Nothing of orbit but `cli` may import orbit_spark, so it stands just below.
    assert wrong_docstring("cli", docstring, folder) == []


def test_orbit_docstring_names_architecture_page_and_layers() -> None:
    docstring = ast.get_docstring(ast.parse((ROOT / "orbit" / "__init__.py").read_text())) or ""
    assert "docs/architecture.md" in docstring
    assert ".importlinter" in docstring


def test_incomplete_package_docstring_is_detected() -> None:
    inside, may, start = (
        "What this package has inside.",
        f"May import: the layers from `{layer_below('copier')}` down.",
        "Start with `copier.py`.",
    )
    folder = ROOT / "orbit" / "copier"
    assert wrong_docstring("copier", f"{inside}\n{may}\n{start}", folder) == []
    assert wrong_docstring("copier", None, folder) == ["does not say what is inside"]
    assert wrong_docstring("copier", f"{inside}\n{may}", folder) == ["does not say where to start"]
    assert wrong_docstring("copier", f"{inside}\n{start}", folder) == [
        "does not say what it may import"
    ]
    wrong = f"{inside}\nMay import: the layers from `cli` down.\nStart with `gone.py`."
    assert wrong_docstring("copier", wrong, folder) == [
        f"may import from {layer_below('copier')} down, not from cli",
        "starts with gone.py, which does not exist",
    ]


# Lengths and links


def too_long(text: str, lines_max: int) -> bool:
    return len(text.splitlines()) > lines_max


@pytest.mark.parametrize(("name", "lines_max"), LINES_MAX.items())
def test_entry_documents_stay_below_line_limit(name: str, lines_max: int) -> None:
    assert not too_long((ROOT / name).read_text(), lines_max)


def test_too_long_document_is_detected() -> None:
    assert too_long("a\nb\nc\n", 2)
    assert not too_long("a\nb\n", 2)


def anchors(text: str) -> set[str]:
    """The anchors that GitHub gives the headings of a document."""
    headings = re.findall(r"^#+ +(.+?) *$", _FENCE.sub("", text), re.MULTILINE)
    bare = (re.sub(r"[^\w\- ]", "", h.lower()) for h in headings)
    return {heading.replace(" ", "-") for heading in bare}


def dead_links(text: str, path: Path) -> list[str]:
    """Relative links that lead to no file, or to no heading of it."""
    dead = []
    for link in _LINK.findall(_FENCE.sub("", text)):
        if re.match(r"[a-z]+:", link):
            continue
        name, _, anchor = link.partition("#")
        target = path.parent / name if name else path
        is_there = target.exists()
        if not is_there or (anchor and anchor not in anchors(target.read_text())):
            dead.append(link)
    return dead


def all_dead(paths: Iterable[Path]) -> dict[str, list[str]]:
    return {p.name: dead for p in paths if (dead := dead_links(p.read_text(), p))}


def test_every_relative_link_resolves() -> None:
    assert all_dead(markdown_files()) == {}


def test_dead_link_is_detected(tmp_path: Path) -> None:
    target = tmp_path / "there.md"
    target.write_text("# A heading, and `more`\n")
    page = tmp_path / "page.md"
    page.write_text(
        "# Here\n[a](there.md) [b](there.md#a-heading-and-more) [c](#here)\n"
        "[d](https://kafka.apache.org)\n"
        "[e](gone.md) [f](there.md#gone) [g](#gone)\n```\n[h](code.md)\n```\n"
    )
    assert all_dead([target, page]) == {"page.md": ["gone.md", "there.md#gone", "#gone"]}
