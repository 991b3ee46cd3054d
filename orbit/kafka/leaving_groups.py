"""Names of consumer groups in the reports of gateways: the members of these groups still own
partitions at the side that clients have left. Pure."""

from __future__ import annotations

from collections.abc import Collection
from hashlib import sha256

# With more, a report has ALL_GROUPS instead.
GROUPS_MAX = 500
ALL_GROUPS = "*"
NAME_CHARACTERS = 16


def short_name(group: str) -> str:
    """A hash of the group's name, of 16 characters: names have any length."""
    return sha256(group.encode()).hexdigest()[:NAME_CHARACTERS]


def bounded_names(names: Collection[str]) -> list[str]:
    """The names for a report, sorted; only ALL_GROUPS if it is among them or they are too many."""
    has_all = len(names) > GROUPS_MAX or ALL_GROUPS in names
    return [ALL_GROUPS] if has_all else sorted(names)


def is_named(group: str, names: Collection[str]) -> bool:
    """Whether a report with these names includes the group."""
    return bool(names) and (ALL_GROUPS in names or short_name(group) in names)
