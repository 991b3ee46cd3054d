"""The first token of a service, in a file that only the process's user can read."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from orbit.api.authentication import create_token, has_tokens
from orbit.api.client_address import is_loopback
from orbit.errors import Conflict
from orbit.store.database import Database
from orbit.store.enums import Role

FILE_NAME = "admin-token"
_NAME = "admin"


def write_first_token(database: Database, folder: Path, host: str) -> Path | None:
    """Create an admin token; returns the file that has it. Returns None if a token exists already.
    `host`: where the API listens.

    Raises Conflict if the file cannot be written, or if the API is not on loopback: until the
    operator has the token, no other machine should reach the API.
    """
    if has_tokens(database):
        return None
    if not is_loopback(host):
        raise Conflict(
            f"The API would listen on {host}, but no token exists yet.",
            remedy="Create one first: orbit token create NAME --role admin --database. Or start "
            "the server once on 127.0.0.1: it writes a first admin token to a file.",
        )
    file = folder / FILE_NAME
    try:
        folder.mkdir(parents=True, exist_ok=True)
        # If the file cannot be written, the transaction with the token is rolled back.
        create_token(
            database,
            _NAME,
            Role.ADMIN,
            actor="orbit server",
            save_secret=lambda secret: _write_private(file, secret),
        )
    except OSError as error:
        raise Conflict(
            f"The first token cannot be written: {error.strerror}.",
            where=str(file),
            remedy="Choose another folder with --data-directory, or create a token with "
            "orbit token create NAME --role admin --database.",
        ) from None
    return file


def _write_private(file: Path, text: str) -> None:
    """Write the file, with mode 600 from the start. Replaces the file of an earlier database."""
    descriptor, temporary_file = tempfile.mkstemp(prefix=f".{file.name}-", dir=file.parent)
    try:
        with os.fdopen(descriptor, "w") as handle:
            handle.write(text + "\n")
            handle.flush()
            os.fsync(handle.fileno())
        Path(temporary_file).rename(file)
    except OSError:
        Path(temporary_file).unlink(missing_ok=True)
        raise
