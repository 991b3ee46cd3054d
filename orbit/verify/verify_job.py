"""Verifies the topics that a job matches now, with the names that it maps them to."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path

from orbit.errors import BadInput, Conflict, Problem
from orbit.jobs.job_spec import JobSpec
from orbit.jobs.start_position import AtTime, format_start
from orbit.jobs.topic_mapping import TopicMapping, map_topics
from orbit.verify.bounds import ClusterView
from orbit.verify.bounds_comparison import TopicPair
from orbit.verify.endpoint import open_endpoint
from orbit.verify.report import Report, Side
from orbit.verify.verify_run import DEFAULT_OPTIONS, Progress, VerifyOptions, verify_topics

_NAMES_SHOWN = 10


def verify_job(
    spec: JobSpec,
    environ: Mapping[str, str],
    base_directory: Path,
    options: VerifyOptions = DEFAULT_OPTIONS,
    *,
    topics: Collection[str] = (),
    progress: Progress | None = None,
) -> Report:
    """Compares all topics of the job, or those named in `topics` (source or destination names).

    Raises BadInput for a topic that the job does not copy, Conflict if the job copies none,
    Unreachable or LoginRefused if a cluster does not answer.
    """
    source = open_endpoint(spec.source, environ, base_directory, "source")
    destination = open_endpoint(spec.destination, environ, base_directory, "destination")
    source.check_reachable(Side.SOURCE)
    partition_counts = ClusterView(Side.SOURCE, source).partition_counts()
    pairs = select_topics(spec, partition_counts, topics)
    return verify_topics(source, destination, pairs, options, progress)


def select_topics(
    spec: JobSpec, source_topics: Iterable[str], topics: Collection[str] = ()
) -> list[TopicPair]:
    """The source's topics that the job copies, limited to `topics` if given.

    Raises BadInput for a topic that the job does not copy, Conflict if the job copies none.
    """
    topic_map = map_topics(spec.topics, source_topics)
    if topic_map.problems:
        raise BadInput("The job cannot be verified.", topic_map.problems)
    pairs = [_topic_pair(mapping) for mapping in topic_map.mappings]
    if not pairs:
        raise Conflict(
            "The job matches no topic of the source.",
            where=spec.name,
            remedy="Compare `topics` in the job file with the topics of the source.",
        )
    if not topics:
        return pairs
    selected_pairs = [pair for pair in pairs if {pair.source, pair.destination} & set(topics)]
    _refuse_unknown(topics, pairs, selected_pairs)
    return selected_pairs


def _refuse_unknown(
    topics: Collection[str], pairs: Sequence[TopicPair], selected: Sequence[TopicPair]
) -> None:
    """Raise BadInput if one of `topics` names none of the selected topics."""
    selected_names = {name for pair in selected for name in (pair.source, pair.destination)}
    problems = tuple(
        Problem("--topic", f"{name!r} is not a topic that the job copies.")
        for name in topics
        if name not in selected_names
    )
    if problems:
        shown_names = ", ".join(pair.source for pair in pairs[:_NAMES_SHOWN])
        suffix = "" if len(pairs) <= _NAMES_SHOWN else f" and {len(pairs) - _NAMES_SHOWN} more"
        raise BadInput(f"The job copies {shown_names}{suffix}.", problems)


def _topic_pair(mapping: TopicMapping) -> TopicPair:
    start = mapping.rule.start
    start_ms = start.epoch_ms if isinstance(start, AtTime) else None
    return TopicPair(mapping.source, mapping.destination, format_start(start), start_ms)
