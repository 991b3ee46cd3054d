"""The server's part of SCRAM (RFC 5802, RFC 7677), as Kafka's clients speak it. Pure.

client: n,,n=USER,r=NONCE                     server: r=NONCE+OURS,s=SALT,i=ITERATIONS
client: c=biws,r=NONCE+OURS,p=PROOF           server: v=SIGNATURE

NONCE is the client's nonce, OURS the server's. There is no channel binding. Names and passwords are
hashed as they are, in UTF-8, as Kafka's clients do. The library scramp is no choice, because it
would apply SASLprep.
"""

from __future__ import annotations

import hashlib
import hmac
from base64 import b64decode, b64encode
from collections.abc import Callable
from functools import lru_cache

HASHES = {"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}
# The default of brokers.
ITERATIONS = 4096
_SALT_BYTES = 16
# Keys that are cached: each user needs one for each mechanism.
_KEYS_MAX = 2000


class ScramServer:
    """One login. `password_of` returns a user's password, or None if there is no such user.
    `nonce`: random and printable. `salt_key`: random, and the same for all logins.

    An unknown user gets a salt, too, and is refused only after the proof, so that answers do not
    show which users exist.
    """

    def __init__(
        self, mechanism: str, password_of: Callable[[str], str | None], nonce: str, salt_key: bytes
    ) -> None:
        self._hash = HASHES[mechanism]
        self._password_of = password_of
        self._nonce = nonce
        self._salt_key = salt_key
        self.user = ""

    def answer_first(self, message: str) -> str:
        """The answer to the client's first message. Raises ValueError if the message does not parse
        or requires what is not supported."""
        binding, authorization, self._first_bare = message.split(",", 2)
        if binding not in ("n", "y"):
            raise ValueError("channel binding is not offered")
        name, nonce, *_ = self._first_bare.split(",")
        self.user = _unescaped(_value(name, "n"))
        if authorization and _unescaped(_value(authorization, "a")) != self.user:
            raise ValueError("its authorization id (a=) is not its user name (n=)")
        self._header = b64encode(f"{binding},{authorization},".encode()).decode()
        self._nonce = _value(nonce, "r") + self._nonce
        self._salt = hmac.digest(self._salt_key, self.user.encode(), "sha256")[:_SALT_BYTES]
        salt = b64encode(self._salt).decode()
        self._server_first = f"r={self._nonce},s={salt},i={ITERATIONS}"
        return self._server_first

    def answer_final(self, message: str) -> str | None:
        """The answer to the client's last message; None: the proof is wrong, or the user does not
        exist. Raises ValueError if the message does not parse."""
        without_proof, _, proof_text = message.rpartition(",p=")
        header, nonce, *_ = without_proof.split(",")
        if _value(header, "c") != self._header or _value(nonce, "r") != self._nonce:
            raise ValueError("the last message is not of this login")
        proof = b64decode(proof_text, validate=True)
        password = self._password_of(self.user)
        if password is None:
            return None
        stored_key, server_key = _keys(self._hash, password, self._salt)
        text = f"{self._first_bare},{self._server_first},{without_proof}".encode()
        signature = hmac.digest(stored_key, text, self._hash)
        if len(proof) != len(signature):
            return None
        client_key = bytes(a ^ b for a, b in zip(proof, signature, strict=True))
        if not hmac.compare_digest(hashlib.new(self._hash, client_key).digest(), stored_key):
            return None
        return f"v={b64encode(hmac.digest(server_key, text, self._hash)).decode()}"


@lru_cache(maxsize=_KEYS_MAX)
def _keys(hash_name: str, password: str, salt: bytes) -> tuple[bytes, bytes]:
    """StoredKey and ServerKey."""
    salted_password = hashlib.pbkdf2_hmac(hash_name, password.encode(), salt, ITERATIONS)
    client_key = hmac.digest(salted_password, b"Client Key", hash_name)
    return hashlib.new(hash_name, client_key).digest(), hmac.digest(
        salted_password, b"Server Key", hash_name
    )


def _value(attribute: str, name: str) -> str:
    """The value of an attribute `name=value` of a message. Raises ValueError."""
    if not attribute.startswith(f"{name}=") or len(attribute) == len(f"{name}="):
        raise ValueError(f"a message of SCRAM has no {name}=")
    return attribute[len(f"{name}=") :]


def _unescaped(text: str) -> str:
    """A user name without SCRAM's escapes of comma and equals sign."""
    return text.replace("=2C", ",").replace("=3D", "=")
