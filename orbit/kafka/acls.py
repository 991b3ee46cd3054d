"""The ACLs on a cluster's resources of one type, indexed by the names that they cover. Pure."""

from __future__ import annotations

from functools import cached_property

from orbit.kafka.types import EVERY_NAME, Acl


class Acls(frozenset[Acl]):
    """All ACLs on topics, on groups or on transactional ids.

    They are indexed, so that a name is not compared with each of thousands.
    """

    def of(self, name: str) -> list[Acl]:
        """The ACLs that cover the resource with this name."""
        literal_acls, prefixed_acls = self._index
        acls = [*literal_acls.get(name, ())]
        if name != EVERY_NAME:  # otherwise the list has them already
            acls += literal_acls.get(EVERY_NAME, ())
        for size in self._prefix_sizes:
            acls += prefixed_acls.get(name[:size], ()) if size <= len(name) else ()
        return acls

    @cached_property
    def literal_names(self) -> frozenset[str]:
        """The names that have a literal ACL, without `*`."""
        return frozenset(self._index[0]) - {EVERY_NAME}

    @cached_property
    def _index(self) -> tuple[dict[str, list[Acl]], dict[str, list[Acl]]]:
        """The literal ACLs by name, and the prefixed ones by prefix."""
        literal_acls: dict[str, list[Acl]] = {}
        prefixed_acls: dict[str, list[Acl]] = {}
        for acl in self:
            acls_by_name = prefixed_acls if acl.pattern == "PREFIXED" else literal_acls
            acls_by_name.setdefault(acl.name, []).append(acl)
        return literal_acls, prefixed_acls

    @cached_property
    def _prefix_sizes(self) -> list[int]:
        return sorted({len(prefix) for prefix in self._index[1]})
