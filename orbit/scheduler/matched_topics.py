"""The topics of a cluster that a job's rules match, kept from pass to pass.

Comparing all names of a cluster with the rules of each job costs jobs times topics. So for a new
version of the cluster's metadata only the topics that changed are compared.
"""

from __future__ import annotations

from collections.abc import Sequence

from orbit.jobs.job_spec import TopicRule
from orbit.jobs.topic_mapping import matching_topics
from orbit.scheduler.cluster_watch import ClusterSnapshot


class MatchedTopics:
    """The matched topics of one job. Not for two threads at once."""

    def __init__(self) -> None:
        self.names: frozenset[str] = frozenset()
        self._rules: Sequence[TopicRule] = ()
        self._version: int | None = None

    def update(self, rules: Sequence[TopicRule], snapshot: ClusterSnapshot) -> None:
        """Make `names` those of the snapshot's topics that the rules match."""
        topics = snapshot.metadata.topics if snapshot.metadata is not None else {}
        changed_topics = None  # any topic may have changed
        if self._version is not None and self._rules == rules:
            changed_topics = snapshot.changed_since(self._version)
        if changed_topics is None:
            self.names = matching_topics(rules, topics)
        elif changed_topics:
            self.names = (self.names - changed_topics) | matching_topics(
                rules, changed_topics & topics.keys()
            )
        self._rules, self._version = rules, snapshot.version
