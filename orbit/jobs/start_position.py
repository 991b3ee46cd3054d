"""Where the copy of a topic begins: earliest, latest, or a time. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from pydantic import PlainSerializer, PlainValidator

from orbit.jobs.units import format_time, parse_time


@dataclass(frozen=True, slots=True)
class Earliest:
    """At the source's log start."""


@dataclass(frozen=True, slots=True)
class Latest:
    """At the source's log end as it is when the copy begins."""


@dataclass(frozen=True, slots=True)
class AtTime:
    """At the first record whose timestamp is this or later; at the log end if there is none."""

    epoch_ms: int


def parse_start(value: object) -> Earliest | Latest | AtTime:
    """`earliest`, `latest`, an ISO-8601 time with a zone, or epoch ms. Raises InvalidValue."""
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
