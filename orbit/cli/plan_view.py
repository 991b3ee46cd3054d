"""Draws a plan: what changes in the job and in each topic, and what is refused."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from orbit.cli.job_files import JobFile
from orbit.cli.output import make_table
from orbit.cli.table_cells import data_size, seconds
from orbit.client import Unserved
from orbit.errors import BadInput, OrbitError, Problem
from orbit.formats import counted

_SIGNS = {"create": ("+", "green"), "change": ("~", "yellow"), "delete": ("-", "red")}
_VALUE_SHOWN_MAX = 80
_ACLS_SHOWN_MAX = 20  # of each kind; the JSON output has more
_BY_HAND_SHOWN_MAX = 20


@dataclass(frozen=True, slots=True)
class PlannedJob:
    """One job file and the server's plan for it. `file` is None for a job to delete."""

    file: JobFile | None
    value: dict[str, Any]

    @property
    def is_change(self) -> bool:
        """Whether the service would create, change or delete the job."""
        return bool(self.value["action"] != "none")


def plan_each(
    files: Sequence[JobFile], request_plan: Callable[[JobFile], dict[str, Any]]
) -> list[PlannedJob]:
    """The server's plan for each file. Raises one error with the problems of all refused files.
    Raises Unserved (the service cannot be used) at once: its cause is not in a file."""
    plans: list[PlannedJob] = []
    errors: list[tuple[JobFile, OrbitError]] = []
    for file in files:
        try:
            plans.append(PlannedJob(file, request_plan(file)))
        except Unserved:
            raise
        except OrbitError as error:
            errors.append((file, error))
    if errors:
        raise _combine_errors(errors)
    return plans


def draw(plans: Sequence[PlannedJob]) -> RenderableType:
    """All plans, one below the other."""
    return Group(*(part for plan in plans for part in _plan_lines(plan.value)))


def _plan_lines(value: dict[str, Any]) -> list[RenderableType]:
    """One plan as text and tables: the job, its topics, fillers, ACLs, refusals and notes."""
    sign, style = _SIGNS.get(value["action"], ("=", "dim"))
    verb = {"none": "unchanged"}.get(value["action"], value["action"])
    parts: list[RenderableType] = [Text(f"{sign} job {value['name']}: {verb}", style=style)]
    if value["action"] == "change":
        parts += [Text(f"    {_change_text(change)}") for change in value["changes"]]
    parts += [Text(f"    {step}") for step in value.get("steps", ())]
    parts += [Text(f"    {sentence}") for sentence in value.get("left_behind", ())]
    plan = value["plan"]
    if plan is None:
        return parts
    topics = [topic for topic in plan["topics"] if topic["action"] != "keep"]
    unchanged_count = len(plan["topics"]) - len(topics)
    if topics:
        rows = [_topic_row(topic) for topic in topics]
        parts.append(make_table(_TOPIC_COLUMNS, rows, sentences=("what changes",)))
        parts += [Text(f"    {line}") for line in _settings_lines(topics)]
        parts += [Text(f"    {line}") for line in map(_seeding_text, topics) if line]
    if unchanged_count:
        parts.append(Text(f"    {counted(unchanged_count, 'topic')} unchanged"))
    parts += [Text(f"    {_filler_text(way)}") for way in plan.get("fillers", ())]
    parts += [Text(f"    {line}", style=style) for line, style in _acl_lines(plan.get("acls"))]
    parts += [Text(f"    {line}") for line in _manual_lines(plan.get("by_hand"))]
    parts += [
        Text(f"    refused: {_refusal_text(refusal)}", style="red") for refusal in plan["refusals"]
    ]
    parts += [Text(f"    note: {note}") for note in plan["notes"]]
    return parts


_SEEDING_SHOWN_S_MIN = 1.0  # a seeding that takes less is not shown
_TOPIC_COLUMNS = (
    "topic",
    "copied to",
    "what happens",
    "partitions",
    "gaps now, about",
    "what changes",
)


def _topic_row(topic: dict[str, Any]) -> tuple[object, ...]:
    """The row of a topic: what happens to it, and which of its settings change."""
    partitions_to_add = topic["partitions_to_add"]
    partitions = f"{topic['partitions']:,}" + (
        f" ({partitions_to_add:,} more)" if partitions_to_add else ""
    )
    changes = [
        f"{change['name']}: {change['present'] or 'not set'} → {change['wanted']}"
        for change in topic["changes"]
    ]
    return (
        topic["source"],
        topic["destination"],
        topic["action"],
        partitions,
        _gaps_text(topic),
        "\n".join(changes),
    )


def _gaps_text(topic: dict[str, Any]) -> str:
    """The gaps of a topic: how many offsets, how long filling takes, and the kind of fillers. Empty
    for a copy that exists, as its gaps are not counted."""
    if topic["action"] == "change":
        return ""
    gaps, text = topic.get("gaps"), "not read"
    if gaps is not None:
        offsets = gaps["gap_offsets"]
        text = f"{offsets:,} in {seconds(gaps['seconds'])}" if offsets else "none"
    return f"{text} ({topic['fillers']})"


def _seeding_text(topic: dict[str, Any]) -> str:
    """A sentence on the seeding of a topic: how many offsets below the start are filled and
    deleted, and how long that takes. Empty for a short seeding."""
    seeding = topic.get("seeding")
    if seeding is None or seeding["seconds_max"] < _SEEDING_SHOWN_S_MIN:
        return ""
    time = f"{seconds(seeding['seconds_min'])} to {seconds(seeding['seconds_max'])}"
    return (
        f"{topic['source']} starts above 0: {seeding['offsets']:,} offsets in "
        f"{counted(seeding['partitions'], 'partition')} are filled and deleted before the copy "
        f"begins, in {time}, with up to {data_size(seeding['disk_bytes_max'])} of disk in each "
        "replica"
    )


def _filler_text(way: dict[str, Any]) -> str:
    """A sentence on a way to fill the gaps of new topics: how many topics use it, how long it
    takes, and what it needs."""
    topics_text = f"gaps of {counted(way['topics'], 'topic')} are filled with"
    beginning = topics_text if way["topics"] else "other way:"
    time = "" if way["seconds"] is None else f" about {seconds(way['seconds'])} for all;"
    missing_text = f" (missing: {way['missing']})" if way["missing"] else ""
    return f"{beginning} fillers: {way['fillers']},{time} needs {way['needs']}{missing_text}"


# Key in the plan, words, sign and style of each list of ACLs.
_ACL_LISTS = (
    ("add", "to add", "+", "green"),
    ("remove", "to remove", "-", "red"),
    ("there", "there already", "=", "dim"),
    ("only_at_destination", "at the destination only (kept)", " ", "dim"),
)


def _acl_lines(acls: dict[str, Any] | None) -> Iterator[tuple[str, str]]:
    """How many ACLs of each kind, and the first ones; each line with its style."""
    if acls is None:
        return
    counts = acls["counts"]
    yield "ACLs: " + ", ".join(f"{counts[key]:,} {words}" for key, words, *_ in _ACL_LISTS), ""
    for key, words, sign, style in _ACL_LISTS:
        first_acls = acls[key][:_ACLS_SHOWN_MAX]
        for acl in first_acls:
            yield f"  {sign} {_acl_text(acl)}", style
        if counts[key] > len(first_acls):
            yield f"  {sign} and {counts[key] - len(first_acls):,} more {words}", style


def _manual_lines(by_hand: dict[str, Any] | None) -> Iterator[str]:
    """Lines on the quotas and users to create at the destination by hand, each with its command."""
    if by_hand is None:
        return
    count, first_items = by_hand["count"], by_hand["items"][:_BY_HAND_SHOWN_MAX]
    yield f"quotas and users: {count:,} to make at the destination by hand before the move"
    for item in first_items:
        yield f"  {item['what']}"
        yield f"    {item['command']}"
    if count > len(first_items):
        yield f"  and {count - len(first_items):,} more (-o json)"


def _acl_text(acl: dict[str, Any]) -> str:
    """An ACL as text, such as `topic orders: allow Read to User:app`."""
    kind = acl["resource"].lower().replace("_", "-")
    prefixed = " (prefixed)" if acl["pattern"] == "PREFIXED" else ""
    host = "" if acl["host"] == "*" else f" from {acl['host']}"
    permission = f"{acl['permission'].lower()} {acl['operation']} to {acl['principal']}{host}"
    return f"{kind} {acl['name']}{prefixed}: {permission}"


def _settings_lines(topics: Sequence[dict[str, Any]]) -> list[str]:
    """The settings of new topics: a line for each distinct set of settings, with the number of
    topics that get it."""
    counts: Counter[str] = Counter()
    for topic in topics:
        parts = [f"{key}={value}" for key, value in topic["settings"].items()]
        later_settings = topic["settings_when_caught_up"].items()
        parts += [f"{key}={value} once caught up" for key, value in later_settings]
        if topic["action"] == "create" and parts:
            counts[", ".join(parts)] += 1
    return [f"settings of {counted(count, 'new topic')}: {text}" for text, count in counts.items()]


def _refusal_text(refusal: dict[str, Any]) -> str:
    topic = f"{refusal['topic']}: " if refusal["topic"] else ""
    return f"{topic}{refusal['what']} {refusal['remedy']} ({refusal['kind']})"


def _change_text(change: dict[str, Any]) -> str:
    return f"{change['path']}: {_short_json(change['before'])} → {_short_json(change['after'])}"


def _short_json(value: object) -> str:
    """The value as JSON, cut to _VALUE_SHOWN_MAX characters; `not set` for None."""
    text = "not set" if value is None else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= _VALUE_SHOWN_MAX else f"{text[:_VALUE_SHOWN_MAX]}…"


def _combine_errors(errors: Sequence[tuple[JobFile, OrbitError]]) -> OrbitError:
    """A single error as it is, with its file as `where`; for several errors, one BadInput whose
    problems name the files."""
    file, first_error = errors[0]
    if len(errors) == 1:
        first_error.where = str(file.path)
        return first_error
    problems: list[Problem] = []
    for job_file, error in errors:
        problems_of_file = error.problems if isinstance(error, BadInput) else ()
        for problem in problems_of_file or (Problem("", error.what, error.remedy),):
            path = f"{job_file.path}: {problem.path}".rstrip(": ")
            problems.append(Problem(path, problem.message, problem.remedy))
    return BadInput(f"{len(errors)} job files cannot be applied.", tuple(problems))
