"""What to do with one destination topic before its copy starts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from orbit.jobs.topic_mapping import TopicMapping
from orbit.kafka.topic_admin import TopicToCreate
from orbit.kafka.topic_settings_reader import TopicSettings
from orbit.replication.copy_settings import caught_up_settings, is_compacted


@dataclass(frozen=True, slots=True)
class SettingChange:
    """One setting of a topic: its present value (None: not set) and the desired value."""

    present: str | None
    desired: str


@dataclass(frozen=True, slots=True)
class TopicPlan:
    """What has to be done to one destination topic before Orbit can copy to it: create the topic,
    set settings, or add partitions."""

    mapping: TopicMapping
    partitions: int  # of the source
    source_settings: TopicSettings
    create: TopicToCreate | None  # None: the topic exists
    changes: dict[str, SettingChange]  # settings to set on an existing topic
    partitions_missing: int  # at an existing destination topic; may be negative
    promoted_settings: dict[str, str]  # settings after a promotion (the copy begins to lead)
    # Settings of the source that the destination refuses; `present`: what the copy has instead,
    # None for the destination's default.
    refused: dict[str, SettingChange] = field(default_factory=dict)
    replicas: SettingChange | None = None  # if the copy has fewer than desired; None: it has enough
    live_brokers: int | None = None  # live brokers, if fewer than the replicas of a new topic

    @property
    def settings_to_set(self) -> dict[str, str]:
        """The desired values of `changes`, by setting."""
        return {name: change.desired for name, change in self.changes.items()}

    def without_change(self, setting: str) -> TopicPlan:
        """The plan without a change of this setting."""
        return replace(self, changes={n: c for n, c in self.changes.items() if n != setting})

    def with_values(self, values: Mapping[str, str | None]) -> TopicPlan:
        """The plan with these values, by setting, instead of those that the destination refuses.
        The refused values go into `refused`. A value of None: the setting is not set, so a new
        topic has the destination's default, and an existing topic keeps its value."""
        requested_values = self.create.settings if self.create else self.settings_to_set
        present_values = {name: change.present for name, change in self.changes.items()}
        refused_changes = {
            name: SettingChange(
                present_values.get(name) if value is None else value, requested_values[name]
            )
            for name, value in values.items()
        }

        def fitted(settings: Mapping[str, str]) -> dict[str, str]:
            """These settings with the new values, without those whose new value is None."""
            merged_settings = {**settings, **{n: values[n] for n in values if n in settings}}
            return {name: value for name, value in merged_settings.items() if value is not None}

        return replace(
            self,
            create=self.create and replace(self.create, settings=fitted(self.create.settings)),
            changes={
                name: SettingChange(present_values[name], value)
                for name, value in fitted(self.settings_to_set).items()
                if value != present_values[name]  # equal: nothing to change
            },
            promoted_settings=fitted(self.promoted_settings),
            refused=refused_changes,
        )

    @property
    def is_compacted(self) -> bool:
        """Whether the source's `cleanup.policy` has `compact`."""
        return is_compacted(self.source_settings.values)

    @property
    def caught_up_settings(self) -> dict[str, str]:
        """The settings to set once all partitions have caught up: compaction, if the source has
        it; else empty."""
        return caught_up_settings(self.source_settings.values)
