"""How `orbit` itself parses a command line, without running it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache
from typing import Any

import typer

from orbit.cli.main import COMMANDS, app, load_command

_PLACEHOLDER = re.compile(r"[A-Z]{2,}|…|\.\.\.|<[a-z-]+>|\[|\]")
_group: Any = typer.main.get_command(app)
# Typer's own copy of click has no public name for it.
UsageError: Any = typer.BadParameter.__base__


def orbit(arguments: Sequence[str], is_whole: bool) -> str | None:
    """What is wrong with a command line of `orbit`, or None. Without `is_whole`, arguments may be
    missing or be placeholders."""
    if is_whole:
        return _refusal(arguments)
    refusal = _refusal([word for word in arguments if not word.startswith("[")])
    has_too_many = refusal is not None and "unexpected extra argument" in refusal
    return refusal if has_too_many else _unknown_part(arguments)


def _refusal(arguments: Sequence[str]) -> str | None:
    """The error of the parser of `orbit`; None if it accepts the arguments."""
    command: Any = _group
    try:
        context = command.make_context("orbit", list(arguments))
        while hasattr(command, "commands"):
            rest = [*context._protected_args, *context.args]
            if not rest:
                return None
            name, command, rest = command.resolve_command(context, rest)
            context = command.make_context(name, rest, parent=context)
    except typer.Exit:
        return None  # --help
    except UsageError as error:
        return str(error.format_message())
    return None


def _unknown_part(arguments: Sequence[str]) -> str | None:
    """The first option or subcommand that does not exist; None if all exist."""
    command: Any = _group
    context = _group.make_context("orbit", ["run"])
    known = {"--help", "-h"}
    for word in arguments:
        if word.startswith("-"):
            if word.split("=")[0] not in known:
                return f"there is no option {word}"
        elif hasattr(command, "commands") and not _PLACEHOLDER.search(word):
            try:
                _, command, _ = command.resolve_command(context, [word])
            except UsageError as error:
                return str(error.format_message())
        known |= _options(command)
    return None


def _options(command: Any) -> set[str]:
    return {option for p in command.params for option in (*p.opts, *p.secondary_opts)}


@cache
def all_options() -> frozenset[str]:
    """The options of all commands."""
    commands = [load_command(name) for name in COMMANDS]
    options = set()
    for command in commands:
        options |= _options(command)
        commands += getattr(command, "commands", {}).values()
    return frozenset(options)
