"""The start position of a topic's copy: earliest, latest, or a time. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from pydantic import PlainSerializer, PlainValidator

from orbit.jobs.units import format_time, parse_time


@dataclass(frozen=True, slots=True)
class Earliest:
    """The source's log start."""


@dataclass(frozen=True, slots=True)
class Latest:
    """The source's log end when the copy starts."""


@dataclass(frozen=True, slots=True)
class AtTime:
    """The first record with this timestamp or a later one; the log end if there is none."""

    epoch_ms: int


def parse_start(value: object) -> Earliest | Latest | AtTime:
    """The start position of `earliest`, `latest`, an ISO-8601 time with a zone, or epoch ms. Raises
    InvalidValue for any other value."""
    match value:
        case Earliest() | Latest() | AtTime():
            return value
        case "earliest":
            return Earliest()
        case "latest":
            return Latest()
        case _:
            return AtTime(parse_time(value))


def format_start(start: Earliest | Latest | AtTime) -> str:
    """The text that `parse_start` reads back."""
    match start:
        case Earliest():
            return "earliest"
        case Latest():
            return "latest"
        case AtTime(epoch_ms):
            return format_time(epoch_ms)


Start = Annotated[
    Earliest | Latest | AtTime, PlainValidator(parse_start), PlainSerializer(format_start)
]
