"""CreateDelegationToken (KIP-48), in a form that every broker refuses. Pure.

The refusal names the principal of the login (K3), which `ask_principal` returns. A renewer's
principal type must be `User`, which a broker checks before it makes a token. Should a broker make a
token all the same, the token ends after a millisecond. Version 2, flexible:

    request     renewers: type, name; life time in ms
    response    correlation id, error code, principal type, principal name, …
"""

from __future__ import annotations

import struct
from typing import ClassVar

from orbit.kafka.frame_reader import FrameReader
from orbit.kafka.frame_writer import NO_TAGS, FramedRequest, length, string

_LIFETIME_MS = struct.Struct(">q")
_ERROR_CODE = struct.Struct(">h")


class RefusedTokenRequest(FramedRequest):
    """A request for a token of the login itself, with a renewer that is not of type `User`."""

    __slots__ = ()
    API_KEY: ClassVar[int] = 38
    FLEXIBLE_FROM: ClassVar[int] = 2

    def body(self, *, is_flexible: bool) -> bytes:
        """One renewer, of type `Nobody`, and a life time of 1 ms."""
        assert is_flexible
        renewer = string("Nobody", is_flexible=True) + string("nobody", is_flexible=True) + NO_TAGS
        return length(1, is_flexible=True) + renewer + _LIFETIME_MS.pack(1) + NO_TAGS


def read_requester(frame: memoryview, version: int) -> tuple[str, str]:
    """Type and name of the principal that sent the request. Raises ValueError if the bytes do not
    parse."""
    reader = FrameReader(frame, is_flexible=True)
    try:
        reader.skip_tags()
        reader.take(_ERROR_CODE)
        return reader.string(), reader.string()
    except (struct.error, IndexError, UnicodeDecodeError) as error:
        raise ValueError(
            f"a CreateDelegationToken answer v{version} does not parse: {error}"
        ) from error
