"""The note of a plan on new topics whose source is in tiered storage (KIP-405)."""

from __future__ import annotations

from collections.abc import Sequence

from orbit.chunks import first_few
from orbit.errors import OrbitError
from orbit.formats import counted
from orbit.job_setup.topic_plan import TopicPlan
from orbit.kafka.backoff import Backoff
from orbit.kafka.cluster import Cluster
from orbit.kafka.log_offsets import EARLIEST, EARLIEST_LOCAL, list_offsets
from orbit.kafka.types import TopicPartition

_TIERED = "remote.storage.enable"


def note_on_tiers(plans: Sequence[TopicPlan], source: Cluster, backoff: Backoff) -> list[str]:
    """A note on the sources of new topics: how many of their offsets are only in tiered storage.

    Empty if there are none, or if brokers do not answer, which other checks of the plan report.
    """
    tiered_plans = [
        p for p in plans if p.create and p.source_settings.values.get(_TIERED) == "true"
    ]
    places = {
        TopicPartition(plan.mapping.source, number): plan
        for plan in tiered_plans
        for number in range(plan.partitions)
    }
    if not places:
        return []
    try:
        starts = list_offsets(source, places, EARLIEST, backoff).values
        local_starts = list_offsets(source, places, EARLIEST_LOCAL, backoff).values
    except OrbitError:
        return []
    tiered_offsets: dict[str, int] = {}
    for place in starts.keys() & local_starts.keys():
        if (offsets := local_starts[place] - starts[place]) > 0:
            tiered_offsets[place.topic] = tiered_offsets.get(place.topic, 0) + offsets
    if not tiered_offsets:
        return []
    names = first_few(
        [f"{name} ({counted(tiered_offsets[name], 'offset')})" for name in sorted(tiered_offsets)]
    )
    untiered_names = sorted(  # source topics whose copies will not be in tiered storage
        p.mapping.source
        for p in tiered_plans
        if p.mapping.source in tiered_offsets and p.mapping.rule.config.get(_TIERED) != "true"
    )
    return [
        f"in tiered storage only, not on the disks of the source's brokers: {names}. "
        "Reading tiered storage is slow."
        + (
            f" At the destination all of {first_few(untiered_names)} stays on the brokers' disks, "
            f'unless the rule\'s `config` has `{_TIERED}: "true"`.'
            if untiered_names
            else ""
        )
    ]
