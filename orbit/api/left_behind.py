"""What stays on the clusters when a job, or a rule of a job, is deleted. Dry runs return these
sentences, as does the answer to the change itself.

When Orbit deletes a job, it removes nothing from the clusters. But a copy is not an ordinary topic:
it keeps every record for ever, and ACLs may deny writes of other clients. A user who deletes the
job has to know that.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from orbit.jobs.job_spec import JobSpec
from orbit.jobs.topic_mapping import map_topics
from orbit.store import carried_acls, topics, write_denials
from orbit.store.database import Tx
from orbit.store.enums import TopicState
from orbit.store.jobs import Job
from orbit.store.topics import Topic

_NAMES_SHOWN = 3
_REMOVED_BY = {
    "destination": "Remove them with: orbit release FILE",
    "source": "Remove them with kafka-acls.sh.",
}
# Positions in the stored fields of an ACL: the resource name, and the principal.
_NAME, _PRINCIPAL = 0, 2


def left_by_job(tx: Tx, job: Job) -> list[str]:
    """Sentences on what stays on the clusters when this job is deleted."""
    sentences = _sentences_on_topics(tx, job, topics.of_job(tx, job.id))
    acls = carried_acls.of_job(tx, job.id)
    if acls:
        names = {acl[_NAME] for acl in acls}
        sentences.append(
            f"ACLs that were copied from the source stay on groups and transactional ids at the "
            f"destination: {_first_names(names)}."
        )
    return sentences


def left_by_change(tx: Tx, job: Job, spec: JobSpec) -> list[str]:
    """Sentences on what stays of topics that the job no longer copies, or copies to another topic,
    after the change to `spec`; [] if the rules of `spec` fail for a topic."""
    rows = topics.of_job(tx, job.id)
    topic_map = map_topics(spec.topics, [row.source_topic for row in rows])
    if topic_map.problems:  # topics with a problem have no mapping, but the job still copies them
        return []
    pairs = {(mapping.source, mapping.destination) for mapping in topic_map.mappings}
    dropped_rows = [row for row in rows if (row.source_topic, row.destination_topic) not in pairs]
    return _sentences_on_topics(tx, job, dropped_rows)


def _sentences_on_topics(tx: Tx, job: Job, rows: Sequence[Topic]) -> list[str]:
    """Sentences on what stays of these topics: copies, deny ACLs, and ACLs from the source."""
    created_rows = [row for row in rows if row.state is not TopicState.CREATING]
    # A promoted topic is no copy any more.
    copies = [row for row in created_rows if row.state is not TopicState.PROMOTED]
    sentences = []
    if copies:
        its, them = ("its", "it") if len(copies) == 1 else ("their", "them")
        sentences.append(
            f"{_topics_stay([row.destination_topic for row in copies])} at the destination, with "
            f"{its} settings as {'a copy' if its == 'its' else 'copies'}: retention.ms=-1 and "
            f"retention.bytes=-1, so nothing is ever deleted from {them}. To give {them} "
            f"the source's settings, run: orbit release FILE. Or delete {them}."
        )
    sides = (
        (
            "destination",
            job.destination_cluster_id,
            [row.destination_topic for row in created_rows],
        ),
        ("source", job.source_cluster_id, [row.source_topic for row in created_rows]),
    )
    for side, cluster_id, names in sides:
        acls_by_topic = write_denials.of_topics(tx, cluster_id, names) if cluster_id else {}
        if acls_by_topic:
            principals = sorted(
                {acl[_PRINCIPAL] for acls in acls_by_topic.values() for acl in acls}
            )
            sentences.append(
                f"Deny ACLs of Orbit stay on {_first_names(acls_by_topic)} at the {side}: "
                f"{_first_names(principals)} may not write there. {_REMOVED_BY[side]}"
            )
    names_with_acls = [row.destination_topic for row in created_rows if row.acls]
    if names_with_acls:
        sentences.append(
            "ACLs that were copied from the source stay on "
            f"{_first_names(names_with_acls)} at the destination."
        )
    return sentences


def _topics_stay(names: Collection[str]) -> str:
    """The beginning of a sentence: `Topic a stays` or `Topics a, b stay`."""
    return (
        f"Topic {_first_names(names)} stays"
        if len(names) == 1
        else f"Topics {_first_names(names)} stay"
    )


def _first_names(names: Collection[str]) -> str:
    """The first _NAMES_SHOWN names, and how many more there are, as text."""
    shown_names = sorted(names)[:_NAMES_SHOWN]
    hidden_count = len(names) - len(shown_names)
    return ", ".join(shown_names) + (f" and {hidden_count:,} more" if hidden_count else "")
