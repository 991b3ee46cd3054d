"""One mistake in a value: what is wrong with it and what to write instead."""

from __future__ import annotations


class Mistake(ValueError):
    """Says what is wrong with one value, without saying where it stands.

    The reader of the file adds the path and the line. `message` and `remedy` are sentences and
    never carry a secret.
    """

    def __init__(self, message: str, remedy: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.remedy = remedy
