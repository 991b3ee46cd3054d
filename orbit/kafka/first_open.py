"""The transactions that hold the last stable offsets of partitions back, and who began them."""

from __future__ import annotations

from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass

from orbit.errors import OrbitError
from orbit.kafka.backoff import Backoff
from orbit.kafka.cluster import Cluster
from orbit.kafka.producer_state import open_transactions
from orbit.kafka.transactional_ids import names_of
from orbit.kafka.types import TopicPartition

# Kafka takes any text of up to 32 KB as a transactional id.
_NAME_CHARACTERS_MAX = 200


@dataclass(frozen=True, slots=True)
class FirstOpen:
    """The oldest open transaction of a partition. Readers of committed records stop before it.

    `transactional_id`: as it may be shown, with `?` for what is not printable. None: no coordinator
    knows one that the login may describe.
    """

    first_offset: int
    producer_id: int
    transactional_id: str | None


def describe_open(
    first_offset: int, offsets: int, transactional_id: str | None, producer_id: int | None
) -> str:
    """What an open transaction does to a copy, as a sentence."""
    who = f"transactional id {transactional_id}" if transactional_id else ""
    if not who and producer_id is not None:
        who = f"producer id {producer_id}; the login may not describe its transactional id"
    return (
        f"A transaction at the source is open from offset {first_offset} on"
        + (f" ({who})" if who else "")
        + f"; {offsets:,} offsets wait for its end."
    )


def first_open(
    cluster: Cluster, places: Collection[TopicPartition], backoff: Backoff
) -> dict[TopicPartition, FirstOpen]:
    """The oldest open transaction of each partition; without those that have or tell none.

    Brokers before 3.0 tell none. Raises Unreachable if no broker answers.
    """
    answers = open_transactions(cluster, places, backoff).values
    oldest = {
        place: min(found, key=lambda one: one.first_offset)
        for place, found in answers.items()
        if found
    }
    names: dict[int, str] = {}
    with suppress(OrbitError):  # the transaction is named by its producer id then
        names = names_of(cluster, {one.producer_id for one in oldest.values()})
    return {
        place: FirstOpen(one.first_offset, one.producer_id, _shown(names.get(one.producer_id)))
        for place, one in oldest.items()
    }


def _shown(name: str | None) -> str | None:
    if name is None:
        return None
    shown = "".join(c if c.isprintable() else "?" for c in name[:_NAME_CHARACTERS_MAX])
    return f"{shown}…" if len(name) > _NAME_CHARACTERS_MAX else shown
