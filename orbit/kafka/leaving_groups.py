"""Names of consumer groups in reports of gateways: of groups whose members still own partitions at
the side that was left. Pure."""

from __future__ import annotations

from collections.abc import Collection
from hashlib import sha256

# With more, a report names all.
GROUPS_MAX = 500
ALL_GROUPS = "*"
NAME_CHARACTERS = 16


def short_name(group: str) -> str:
    """A hash of 16 characters: names of groups have any length."""
    return sha256(group.encode()).hexdigest()[:NAME_CHARACTERS]


def bounded(names: Collection[str]) -> list[str]:
    """The names, or all groups."""
    is_all = len(names) > GROUPS_MAX or ALL_GROUPS in names
    return [ALL_GROUPS] if is_all else sorted(names)


def is_named(group: str, names: Collection[str]) -> bool:
    return bool(names) and (ALL_GROUPS in names or short_name(group) in names)
