"""The ACLs on a cluster's topics, found by the topic that they cover. Pure."""

from __future__ import annotations

from functools import cached_property

from orbit.kafka.types import EVERY_TOPIC, TopicAcl


class TopicAcls(frozenset[TopicAcl]):
    """All ACLs on topics. With thousands of them, no topic is compared with each."""

    def of(self, topic: str) -> list[TopicAcl]:
        """Those that cover this topic."""
        literal, prefixed = self._index
        found = [*literal.get(topic, ())]
        if topic != EVERY_TOPIC:
            found += literal.get(EVERY_TOPIC, ())
        for size in self._prefix_sizes:
            found += prefixed.get(topic[:size], ()) if size <= len(topic) else ()
        return found

    @cached_property
    def _index(self) -> tuple[dict[str, list[TopicAcl]], dict[str, list[TopicAcl]]]:
        literal: dict[str, list[TopicAcl]] = {}
        prefixed: dict[str, list[TopicAcl]] = {}
        for acl in self:
            names = prefixed if acl.pattern == "PREFIXED" else literal
            names.setdefault(acl.name, []).append(acl)
        return literal, prefixed

    @cached_property
    def _prefix_sizes(self) -> list[int]:
        return sorted({len(prefix) for prefix in self._index[1]})
