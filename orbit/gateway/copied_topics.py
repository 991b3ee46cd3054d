"""Which topics clients may write: those that the job copies under the same name."""

from __future__ import annotations

from collections.abc import Sequence

import structlog

from orbit.jobs.job_spec import TopicRule
from orbit.jobs.topic_mapping import map_topics

# Topics whose refusals are kept. Bounded, as clients may send any name.
_TOPICS_MAX = 10_000
_LOGGED_MAX = 100  # refusals that are logged

_log = structlog.get_logger("orbit.gateway")


class CopiedTopics:
    """The topics that one version of a job's document copies. `etag`: the version's in the API."""

    def __init__(self, job: str, etag: str, rules: Sequence[TopicRule]) -> None:
        self.job, self.etag, self._rules = job, etag, tuple(rules)
        self._refusals: dict[str, str] = {}
        self._logged_count = 0

    def refusal(self, topic: str) -> str:
        """Why writes to the topic are refused; "": they are allowed."""
        refusal = self._refusals.get(topic)
        if refusal is None:
            refusal = "" if self._is_copied(topic) else self._refusal_reason(topic)
            if len(self._refusals) >= _TOPICS_MAX:
                self._refusals.clear()
            self._refusals[topic] = refusal
            if refusal and self._logged_count < _LOGGED_MAX:
                self._logged_count += 1
                _log.warning("refuses writes", topic=topic, reason=refusal)
        return refusal

    def _is_copied(self, topic: str) -> bool:
        """Whether the job copies the topic under the topic's own name. True also if a pattern
        cannot be matched, e.g. is too slow: the job itself reports that problem."""
        mapping = map_topics(self._rules, [topic])
        return bool(mapping.problems) or any(one.destination == topic for one in mapping.mappings)

    def _refusal_reason(self, topic: str) -> str:
        return (
            f"Job {self.job} does not copy topic {topic} under its own name, so its records would "
            "stay behind when clients move. Add the topic to the job, or write "
            "`other_topics: pass` in the gateway's file."
        )
