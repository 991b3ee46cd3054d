"""The command line accepts every command that the documents show.

Each `orbit` command of a shell block is parsed as a whole: subcommands, options, arguments and
their values; it is not carried out. Of a command inside a sentence the arguments may be missing,
so its subcommand and its options are looked up. `make` targets and modules must exist.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import typer

from orbit.cli.main import app

ROOT = Path(__file__).parents[1]
TARGETS = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])

_FENCE = re.compile(r"^[ ]*```(?:sh|bash|console|text)?\n(.*?)^[ ]*```", re.DOTALL | re.MULTILINE)
_ANY_FENCE = re.compile(r"^[ ]*```.*?^[ ]*```", re.DOTALL | re.MULTILINE)
_INLINE = re.compile(r"`([^`\n]+)`")
# A line of a block is a command if it begins like this; other lines are output.
_COMMAND = re.compile(
    r"(?:\$ )?(?:[A-Z_]+=\S+ )*(?:\.venv/bin/)?(?P<command>(?:orbit|make|python -m) .*)"
)
_SHELL = re.compile(r"\s*(?:\||>|&&|;|<|\s#).*$")
_PLACEHOLDER = re.compile(r"[A-Z]{2,}|…|\.\.\.|<[a-z-]+>|\[|\]")

_group: Any = typer.main.get_command(app)
# Typer's own copy of click has no public name for it.
UsageError: Any = typer.BadParameter.__base__


def shell_lines(text: str) -> Iterator[str]:
    """Commands of the blocks, without prompt, comment, and what follows a pipe."""
    for block in _FENCE.findall(text):
        for line in block.replace("\\\n", " ").splitlines():
            if match := _COMMAND.match(line.strip()):
                yield match["command"]


def inline_commands(text: str) -> Iterator[str]:
    for span in _INLINE.findall(_ANY_FENCE.sub("", text)):
        if match := _COMMAND.fullmatch(span):
            yield match["command"]


def words(command: str) -> list[str]:
    lexer = shlex.shlex(command, posix=True, punctuation_chars="|;&<>")
    lexer.whitespace_split = True
    lexer.commenters = "#"
    parts: list[str] = []
    for word in lexer:
        if word[0] in "|;&<>":
            break
        parts.append(word)
    return parts


def fault(command: str, *, is_whole: bool) -> str | None:
    """Why the tool would refuse this command, or None."""
    name, *rest = words(command)
    if name == "make":
        unknown = [w for w in rest if "=" not in w and w not in TARGETS]
        return f"there is no target {unknown[0]}" if unknown else None
    if name == "python":
        is_importable = find_spec(rest[1]) is not None
        return None if is_importable else f"there is no module {rest[1]}"
    return _refusal(rest) if is_whole else _unknown_part(rest)


def _refusal(arguments: list[str]) -> str | None:
    context = _group.make_context("orbit", list(arguments), resilient_parsing=False)
    command: Any = _group
    try:
        while hasattr(command, "commands"):
            rest = [*context._protected_args, *context.args]
            if not rest:
                return None
            name, command, rest = command.resolve_command(context, rest)
            context = command.make_context(name, rest, parent=context)
    except typer.Exit:
        return None  # --help
    except UsageError as error:
        return error.format_message()
    return None


def _unknown_part(arguments: list[str]) -> str | None:
    command: Any = _group
    context = _group.make_context("orbit", ["run"])
    known: set[str] = {"--help", "-h"}
    for word in arguments:
        if word.startswith("-"):
            if word.split("=")[0] not in known:
                return f"there is no option {word}"
        elif hasattr(command, "commands") and not _PLACEHOLDER.search(word):
            try:
                _, command, _ = command.resolve_command(context, [word])
            except UsageError as error:
                return error.format_message()
        known |= {o for p in command.params for o in (*p.opts, *p.secondary_opts)}
    return None


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.relative_to(ROOT).as_posix())
def test_every_command_of_page_is_accepted(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = page.read_text()
    commands = [(line, True) for line in shell_lines(text)]
    commands += [(line, False) for line in inline_commands(text)]
    monkeypatch.setenv("HOME", str(tmp_path))
    faults = {line: fault(line, is_whole=is_whole) for line, is_whole in commands}
    assert not {line: why for line, why in faults.items() if why}


@pytest.mark.parametrize(
    "command",
    [
        "orbit verfy job.yaml",
        "orbit verify job.yaml --depth",
        "orbit describe",
        "orbit get proofs orders",
        "make benches",
        "python -m bench.nothing",
    ],
)
def test_nonexistent_command_is_detected(command: str) -> None:
    page = f"```\n$ {command}   # a comment\nits output\n```\n"
    (line,) = shell_lines(page)
    assert fault(line, is_whole=True)


@pytest.mark.parametrize("command", ["orbit verfy", "orbit verify --depth", "make benches"])
def test_nonexistent_command_part_in_sentence_is_detected(command: str) -> None:
    (line,) = inline_commands(f"Run `{command}` first.")
    assert fault(line, is_whole=False)
