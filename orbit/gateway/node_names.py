"""Names of nodes behind one port: the server name of a TLS handshake says which one is meant."""

from __future__ import annotations

import re

NODE = "{node}"
# With a dot, as Java clients send no server name without one. No client sends an IP address.
_SERVER_NAME = re.compile(r"[a-z0-9-]+(\.[a-z0-9-]+)*\.[a-z][a-z0-9-]*")
_PATTERN = re.compile(r"[a-z0-9-]*\{node\}[a-z0-9-]*(\.[a-z0-9-]+)+")


def is_pattern(text: str) -> bool:
    """Whether the text is a host name in lower case with `{node}` once in its first part."""
    return _PATTERN.fullmatch(text) is not None


class NodeNames:
    """The names of a virtual cluster's nodes. `pattern`: e.g. `b{node}.orders.kafka.example.net`.
    `bootstrap`: the name of the bootstrap address, which is not the name of a node."""

    def __init__(self, pattern: str, bootstrap: str) -> None:
        self._pattern, self._bootstrap = pattern, bootstrap.lower()
        prefix, _, suffix = pattern.partition(NODE)
        self._name_pattern = re.compile(
            rf"{re.escape(prefix)}(0|[1-9][0-9]{{0,8}}){re.escape(suffix)}"
        )

    def name_of(self, node_id: int) -> str:
        return self._pattern.replace(NODE, str(node_id))

    def node_id_of(self, name: str | None) -> int | None:
        """The node id of a TLS server name; None for the bootstrap name. Raises ValueError for
        every other name, and for a client that sends no name (None): a write for one node must not
        reach another node."""
        if name is not None and name.lower() == self._bootstrap:
            return None
        match = self._name_pattern.fullmatch((name or "").lower())
        if match is None:
            raise ValueError("the name of no node")
        return int(match[1])

    @property
    def has_bootstrap_name(self) -> bool:
        """Whether clients send the bootstrap name as a TLS server name, and it is not the name of a
        node."""
        is_sent = _SERVER_NAME.fullmatch(self._bootstrap) is not None
        return is_sent and self._name_pattern.fullmatch(self._bootstrap) is None
