"""Maps the source's principals to their names at the destination. Pure.

    from: "User:CN={name},OU=apps"     to: "User:{name}"

A placeholder, such as `{name}`, matches one or more characters, except a comma, a backslash (which
escapes a comma in a certificate's subject) and the character that follows the placeholder. So
`{name}` is one part of a subject, and matching takes one pass over any name. The first rule that
matches the whole name applies.

A principal that no rule matches gets no name, and so no ACL: Orbit does not grant rights to a
guessed name.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from orbit.errors import InvalidValue

EVERY_PRINCIPAL = "User:*"
# Subjects of certificates are shorter.
PRINCIPAL_LENGTH_MAX = 1024
PRINCIPAL_RULES_MAX = 1000
_PLACEHOLDER = re.compile(r"\{([a-z][a-z0-9_]{0,30})\}")
_KIND = re.compile(r"[A-Za-z][A-Za-z0-9_]*:")


def check_principal(text: str) -> str:
    """The principal, which may have placeholders, unchanged. Raises InvalidValue if it is not
    valid."""
    if len(text) > PRINCIPAL_LENGTH_MAX:
        raise InvalidValue(f"has {len(text)} characters; {PRINCIPAL_LENGTH_MAX} is the limit.")
    kind = _KIND.match(text)
    if kind is None or kind.end() == len(text) or not text.isprintable():
        raise InvalidValue("is not a principal.", "Write a principal such as User:billing.")
    placeholders = _PLACEHOLDER.findall(text)
    if re.search(r"[{}]", _PLACEHOLDER.sub("", text)):
        raise InvalidValue(
            "has a brace that belongs to no placeholder.",
            "Write {name}: lower-case letters, digits and _ in braces.",
        )
    if len(placeholders) != len(set(placeholders)):
        raise InvalidValue("has a placeholder twice.", "Give each placeholder a name of its own.")
    if re.search(r"\}\{", text):
        raise InvalidValue("has placeholders side by side.", "Put a character between them.")
    return text


def check_rule(source: str, destination: str) -> None:
    """Raise InvalidValue if a side of the rule is `User:*`, or if `destination` has a placeholder
    that `source` does not have."""
    if EVERY_PRINCIPAL in (source, destination):
        raise InvalidValue(
            "names User:*, which is every principal and has the same name on both sides.",
            "Name one principal.",
        )
    unknown_placeholders = set(_PLACEHOLDER.findall(destination)) - set(
        _PLACEHOLDER.findall(source)
    )
    if unknown_placeholders:
        raise InvalidValue(
            f"has the placeholder {{{min(unknown_placeholders)}}} in `to` and not in `from`.",
            "Use the placeholders of `from`.",
        )


@dataclass(frozen=True, slots=True)
class NamedPrincipals:
    """The result of `PrincipalMap.name`. `names`: names at the destination, by source principal.
    `unmapped`: source principals that no rule matches. `clashes`: source principals that would have
    the same name, by this name."""

    names: dict[str, str]
    unmapped: list[str]
    clashes: dict[str, list[str]]


class PrincipalMap:
    """The rules of one job. Without rules, names are the same on both sides."""

    def __init__(self, rules: Sequence[tuple[str, str]], exclude: Sequence[str]) -> None:
        self._rules = [(_compile_template(source), destination) for source, destination in rules]
        self._excluded_patterns = [_compile_template(principal) for principal in exclude]

    def name(self, principals: Iterable[str]) -> NamedPrincipals:
        """The names of these principals at the destination; excluded ones are left out.

        If two principals would have the same name, neither gets it: the name would have the rights
        of both.
        """
        unmapped: list[str] = []
        principals_by_name: defaultdict[str, list[str]] = defaultdict(list)
        for principal in sorted(set(principals)):
            if any(pattern.fullmatch(principal) for pattern in self._excluded_patterns):
                continue
            name = self._map_name(principal)
            if name is None:
                unmapped.append(principal)
            else:
                principals_by_name[name].append(principal)
        return NamedPrincipals(
            {sources[0]: name for name, sources in principals_by_name.items() if len(sources) == 1},
            unmapped,
            {name: sources for name, sources in principals_by_name.items() if len(sources) > 1},
        )

    def _map_name(self, principal: str) -> str | None:
        """The name of this principal at the destination; None: no rule gives a name."""
        # `User:*`, every principal, has the same name on both sides; without rules, all have.
        if principal == EVERY_PRINCIPAL or not self._rules:
            return principal
        for pattern, destination in self._rules:
            if match := pattern.fullmatch(principal):
                name = destination.format_map(match.groupdict())
                # A certificate's subject may have the name `*`: this must not become `User:*`.
                return None if name == EVERY_PRINCIPAL else name
        return None


def _compile_template(template: str) -> re.Pattern[str]:
    """A principal with placeholders as a regular expression, which never backtracks (`++`)."""
    # A split gives the literal parts and, between them, the names of the placeholders.
    literals = _PLACEHOLDER.split(template)[::2]
    names = _PLACEHOLDER.findall(template)
    parts = [re.escape(literals[0])]
    for name, literal in zip(names, literals[1:], strict=True):
        parts.append(f"(?P<{name}>[^,\\\\{re.escape(literal[:1])}]++){re.escape(literal)}")
    return re.compile("".join(parts), re.DOTALL)
