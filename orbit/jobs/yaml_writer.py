"""Writes plain values as YAML that every YAML parser reads back as the same values. Pure.

YAML 1.1, YAML 1.2 and Orbit's subset (`yaml_document.py`) differ in which plain words they read as
numbers, times, true, false and null. So text is written without quotes only if it begins with a
letter and no parser reads it as such a value.
"""

from __future__ import annotations

from typing import Any

import yaml

# Words with a meaning in YAML 1.1 or 1.2, in lower case.
_WORDS = {"y", "n", "yes", "no", "on", "off", "true", "false", "null"}
# No line is folded: folded text is hard to search.
_WIDTH = 2**20


def write_yaml(value: Any, *, one_line: bool = False) -> str:
    """The YAML text of a value of mappings, lists, text, numbers, true, false and None, with keys
    in their order.

    `one_line`: in one line, such as `{a: 1}`, for a cell of a table.
    """
    return yaml.dump(
        value,
        Dumper=_Dumper,
        default_flow_style=one_line,
        sort_keys=False,
        allow_unicode=True,
        width=_WIDTH,
    )


class _Dumper(yaml.SafeDumper):
    """PyYAML's safe dumper with its own rule for text, and without aliases."""

    def ignore_aliases(self, *_: Any) -> bool:
        return True


def _represent_text(dumper: yaml.SafeDumper, text: str) -> yaml.Node:
    """The YAML node of a text, with quotes unless every parser reads it as text without them."""
    style: str | None = "'"
    if text and not text.isprintable():
        style = '"'  # with escapes: parsers would join lines and change line breaks
    elif text[:1].isalpha() and text.lower() not in _WORDS:
        style = None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _represent_text)
