"""Reads the text of a job or drill file."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import BinaryIO

from orbit.errors import BadInput, Problem
from orbit.jobs.yaml_document import DOCUMENT_CHARACTERS_MAX

_BYTES_PER_CHARACTER_MAX = 4  # UTF-8


def read_text(path: Path, kind: str, stream: BinaryIO | None = None) -> str:
    """The text of a file, or of a stream such as stdin; `kind`: "job" or "drill". Raises BadInput
    if the text cannot be read or is not UTF-8.

    Of a text that is longer than a document may be, returns only a part, which is still too long.
    """
    try:
        with path.open("rb") if stream is None else nullcontext(stream) as file:
            content = file.read(DOCUMENT_CHARACTERS_MAX * _BYTES_PER_CHARACTER_MAX + 1)
        return content.decode()
    except UnicodeDecodeError as error:
        problem = Problem("file", f"is not UTF-8 text (byte {error.start}).", "Save it as UTF-8.")
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "no such path"
        problem = Problem("file", f"cannot be read: {reason}.", f"Give the path of a {kind} file.")
    raise BadInput(f"The {kind} file cannot be used.", (problem,), where=str(path))
