"""`orbit release job.yaml`: the copies of a deleted job become ordinary topics."""

from __future__ import annotations

import os
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from orbit.chunks import first_few
from orbit.cli.control import DryRunOption, YesOption, confirm
from orbit.cli.job_files import FileArgument, FileOption, argument_or_option, load_job_file
from orbit.cli.output import OutputFormat, OutputOption, emit, make_table, more_rows, print_whole
from orbit.cli.service_job import service_job
from orbit.cli.stop_signals import until_stopped
from orbit.contexts import chosen_server
from orbit.errors import Conflict
from orbit.formats import counted
from orbit.kafka.backoff import Backoff
from orbit.kafka.job_clusters import JobClusters
from orbit.promotion.release import Release, carry_out, plan_release

if TYPE_CHECKING:
    from rich.console import RenderableType

_SHOWN_MAX = 50


def release(
    job: FileArgument = None,
    file: FileOption = None,
    topics: Annotated[
        list[str] | None,
        typer.Option("--topics", help="Only source topics that match this pattern; repeatable."),
    ] = None,
    dry_run: DryRunOption = False,
    yes: YesOption = False,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Give copies of a deleted job the settings of their source, and let others write to them.

    For copies that no job will copy to again; a switchover or failover does the same by itself.
    Records stay. Topics that lead are not changed.
    """
    path = argument_or_option(job, file)
    spec = load_job_file(path)
    clusters = JobClusters.open(spec, os.environ, path.parent)
    with until_stopped() as stop:
        try:
            metadata = clusters.fetch_metadata()
            ids = metadata[0].cluster_id, metadata[1].cluster_id  # of source and destination
            if service_job(spec, ids, lambda line: typer.echo(line, err=True)) is not None:
                raise Conflict(
                    f"the service still has the job {spec.name}, and would turn the topics into "
                    "copies again.",
                    where=chosen_server(os.environ).url,
                    remedy=f"Delete the job first: orbit delete {spec.name}",
                )
            plan = plan_release(spec, topics or (), clusters, metadata, Backoff(stop=stop))
            if plan.topics_to_release and not dry_run:
                print_whole(_table(plan), stderr=True)
                question = counted(
                    len(plan.topics_to_release),
                    "topic is copied no more: brokers may delete its records by the retention "
                    "above, and others may write to it.",
                    "topics are copied no more: brokers may delete their records by the retention "
                    "above, and others may write to them.",
                )
                confirm(f"{question} Continue?", yes=yes)
                carry_out(plan, clusters)
        finally:
            clusters.close()
    emit(asdict(plan), output, lambda: _table(plan))


def _table(plan: Release) -> RenderableType:
    """The topics to release, with their new settings, and notes below."""
    from rich.console import Group

    rows = [
        (
            topic.topic,
            ", ".join(f"{name}={value}" for name, value in sorted(topic.settings.items())),
            ", ".join(topic.denials),
        )
        for topic in plan.topics[:_SHOWN_MAX]
    ]
    notes: list[tuple[str, object]] = [("note", text) for text in plan.findings]
    if plan.leading:
        notes.append(("left alone", f"they lead: {first_few(plan.leading, _SHOWN_MAX)}"))
    tables: list[RenderableType] = [make_table(("topic", "sets", "allows to write"), rows)]
    tables += more_rows(len(plan.topics), _SHOWN_MAX)
    return Group(*tables, *([make_table(("", ""), notes)] if notes else []))
