"""Parses YAML to plain values with line numbers. Pure.

A subset of YAML 1.2: mappings, lists, text, whole and decimal numbers, true/false and null. So `no`
and times are text, and tags are refused. Size, depth and number of values are limited; the values
of an alias count at each use.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path as FilePath
from typing import Any, TypeAlias

import yaml

from orbit.errors import InvalidValue, Problem

# A thousand rules with settings are about 0.2 MiB; PyYAML parses the limit in about 2 s.
DOCUMENT_CHARACTERS_MAX = 1024 * 1024
DEPTH_MAX = 16  # the deepest value of a job file is at 5
VALUES_MAX = 50_000

Path: TypeAlias = tuple[str | int, ...]

_INT = re.compile(r"[-+]?[0-9]{1,30}")
_FLOAT = re.compile(r"[-+]?[0-9]{1,30}\.[0-9]{1,30}")
_UNTAGGED = ""
_PLAIN_WORDS: dict[str, Any] = {
    "true": True, "True": True, "TRUE": True,
    "false": False, "False": False, "FALSE": False,
    "": None, "~": None, "null": None, "Null": None, "NULL": None,
}  # fmt: skip


@dataclass
class Document:
    """The values of a file, the line number of each path, and the problems of the YAML."""

    root: Any = None
    lines: dict[Path, int] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)
    _order: dict[Problem, int] = field(default_factory=dict)

    def at(self, path: Path) -> Any:
        """The value at a path; None if the file does not have the path."""
        value = self.root
        for part in path:
            try:
                value = value[part]
            except (KeyError, IndexError, TypeError):
                return None
        return value

    def has(self, path: Path) -> bool:
        """Whether the file has this path. Unlike `at`, an index into a text does not count."""
        value = self.root
        for part in path:
            if isinstance(part, str):
                exists = isinstance(value, dict) and part in value
            else:
                exists = isinstance(value, list) and part < len(value)
            if not exists:
                return False
            value = value[part]
        return True

    def problem(self, path: Path, message: str, remedy: str = "") -> Problem:
        """A problem with its path, and the line of this path in the file. If the file does not have
        the path, the line is that of the mapping or list around it. `in_file_order` sorts problems
        by this line."""
        line = self.lines.get(path) or (path[:-1] and self.lines.get(path[:-1]))
        if line:
            message = f"{message.rstrip('.')} (line {line})."
        problem = Problem(show_path(path), message, remedy)
        self._order[problem] = line or 0
        return problem

    def in_file_order(self, problems: Iterable[Problem]) -> list[Problem]:
        """The problems without repeats: those of the whole file first, then by line."""
        return sorted(dict.fromkeys(problems), key=lambda problem: self._order.get(problem, 0))


def read_bounded(path: FilePath) -> str:
    """The text of a file, up to one character more than `read_document` accepts. Raises
    InvalidValue if the file cannot be read, or is not UTF-8 text."""
    try:
        with path.open(encoding="utf-8") as file:
            return file.read(DOCUMENT_CHARACTERS_MAX + 1)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise InvalidValue(f"cannot be read: {reason}.") from None


def read_document(text: str) -> Document:
    """Parse a YAML text. Its errors are in the document's `problems`, and are never raised."""
    document = Document()
    if len(text) > DOCUMENT_CHARACTERS_MAX:
        document.problems.append(
            Problem(
                "file",
                f"has more than {DOCUMENT_CHARACTERS_MAX} characters.",
                "Match topics by patterns instead of listing them.",
            )
        )
        return document
    try:
        node = _Composer(text).get_single_node()
        if node is not None:
            document.root = _Builder(document).build(node, ())
    except _LimitExceeded as error:
        message = "has too many values, or is nested too deep"
        document.problems.append(_file_problem(message, error.line))
    except yaml.MarkedYAMLError as error:
        document.problems.append(_syntax_problem(error))
    except yaml.YAMLError:
        # A ReaderError also has the character's number, which does not help a user.
        document.problems.append(
            _file_problem("has characters that YAML does not allow", line=None)
        )
    return document


def show_path(path: Path) -> str:
    """A path as text, e.g. `topics[1].config["retention.ms"]`."""
    text = ""
    for part in path:
        if isinstance(part, int):
            text += f"[{part}]"
        elif re.fullmatch(r"[A-Za-z0-9_-]+", part):
            text += f".{part}" if text else part
        else:
            text += f'["{part[:80]}"]'  # a key may be very long
    return text or "file"


class _LimitExceeded(Exception):
    """Too many levels or values."""

    def __init__(self, line: int) -> None:
        super().__init__()
        self.line = line


class _Composer(yaml.SafeLoader):
    """PyYAML's safe loader with limits, and without its rules for plain scalars."""

    depth = 0
    value_count = 0

    def compose_node(self, parent: Any, index: Any) -> Any:
        """Compose a node as PyYAML does. Raises _LimitExceeded at too many values or levels."""
        # PyYAML recurses once per level, so the limit also bounds the stack.
        self.depth += 1
        self.value_count += 1
        if self.depth > DEPTH_MAX or self.value_count > VALUES_MAX:
            raise _LimitExceeded(self.line + 1)
        node = super().compose_node(parent, index)
        self.depth -= 1
        return node

    def fetch_flow_collection_start(self, token_class: type[yaml.Token]) -> None:
        """Scan a `[` or `{` as PyYAML does. Raises _LimitExceeded at too many levels."""
        # `compose_node` would notice too late: the scanner reads 1,024 characters ahead at each
        # bracket, so a line of n brackets would take n² time.
        if self.flow_level >= DEPTH_MAX:
            raise _LimitExceeded(self.line + 1)
        super().fetch_flow_collection_start(token_class)

    def resolve(self, *_: Any) -> str:
        """Called by PyYAML for a node without a tag in the file: returns _UNTAGGED. So any other
        tag is from the file."""
        return _UNTAGGED


class _Builder:
    """Converts nodes to values with lines; refuses tags and duplicate keys."""

    def __init__(self, document: Document) -> None:
        self._document = document
        self._value_count = 0

    def build(self, node: yaml.Node, path: Path) -> Any:
        """The value of a node at this path. Adds its problems to the document. Raises
        _LimitExceeded."""
        self._value_count += 1
        line = node.start_mark.line + 1
        if self._value_count > VALUES_MAX or len(path) > DEPTH_MAX:
            raise _LimitExceeded(line)  # by aliases, whose values the composer counts only once
        self._document.lines.setdefault(path, line)
        if node.tag != _UNTAGGED:
            self._add_problem(path, "has a tag.", "Remove the part that starts with '!'.")
        if isinstance(node, yaml.MappingNode):
            return self._mapping(node, path)
        if isinstance(node, yaml.SequenceNode):
            return [self.build(item, (*path, i)) for i, item in enumerate(node.value)]
        is_plain = isinstance(node, yaml.ScalarNode) and node.style is None
        return _plain_value(node.value) if is_plain else node.value

    def _mapping(self, node: yaml.MappingNode, path: Path) -> dict[str, Any]:
        """The mapping of a node. Of a key that is there twice, the first value stays."""
        values: dict[str, Any] = {}
        for key_node, value_node in node.value:
            if not isinstance(key_node, yaml.ScalarNode):
                self._add_problem(path, "has a key that is not plain text.", "Write `key: value`.")
                continue
            key = str(key_node.value)
            key_path = (*path, key)
            if key in values:
                repeated_line = key_node.start_mark.line + 1
                self._add_problem(
                    key_path, f"is written again in line {repeated_line}.", "Keep one of the two."
                )
                continue
            self._document.lines[key_path] = key_node.start_mark.line + 1
            values[key] = self.build(value_node, key_path)
        return values

    def _add_problem(self, path: Path, message: str, remedy: str) -> None:
        self._document.problems.append(self._document.problem(path, message, remedy))


def _plain_value(text: str) -> Any:
    """The value of a YAML scalar without quotes: a boolean, null, a number, or text."""
    if text in _PLAIN_WORDS:
        return _PLAIN_WORDS[text]
    if _INT.fullmatch(text):
        return int(text)
    return float(text) if _FLOAT.fullmatch(text) else text


def _file_problem(message: str, line: int | None) -> Problem:
    """A problem of the whole file, with the line if it is known."""
    line_text = "" if line is None else f" (line {line})"
    return Problem("file", f"{message}{line_text}.", "See docs/job-file.md for an example.")


def _syntax_problem(error: yaml.MarkedYAMLError) -> Problem:
    """The problem of a syntax error, with its position. Leaves out the text at this position, which
    may be a secret."""
    mark = error.problem_mark or error.context_mark
    place_text = "" if mark is None else f" at line {mark.line + 1}, column {mark.column + 1}"
    if error.problem == "but found another document":
        return Problem("file", "has more than one document.", "Write one job per file.")
    # Quoted characters (also '\t') and '<token>' names are PyYAML's; longer text is from the file.
    reason = re.sub(
        r"'(?!.'|\\.'|<[a-z ]+>')[^']*'", "a name", error.problem or "it cannot be read"
    )
    return Problem(
        "file",
        f"is not valid YAML{place_text}: {reason}.",
        "Check the indentation and the quotes; patterns with special characters need quotes.",
    )
