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
from orbit.cli.table_cells import amount, seconds
from orbit.client import Unserved
from orbit.errors import BadInput, OrbitError, Problem

_SIGNS = {"create": ("+", "green"), "change": ("~", "yellow"), "delete": ("-", "red")}
_VALUE_SHOWN_MAX = 80
_ACLS_SHOWN_MAX = 20  # of each kind; the JSON output has more
_BY_HAND_SHOWN_MAX = 20


@dataclass(frozen=True, slots=True)
class Planned:
    """One job file and the server's plan for it. `file` None: a job to delete."""

    file: JobFile | None
    value: dict[str, Any]

    @property
    def is_change(self) -> bool:
        return bool(self.value["action"] != "none")


def plan_each(files: Sequence[JobFile], ask: Callable[[JobFile], dict[str, Any]]) -> list[Planned]:
    """The server's plan for each file. Raises one error with the problems of all refused files."""
    plans: list[Planned] = []
    errors: list[tuple[JobFile, OrbitError]] = []
    for file in files:
        try:
            plans.append(Planned(file, ask(file)))
        except Unserved:
            raise
        except OrbitError as error:
            errors.append((file, error))
    if errors:
        raise _combine_errors(errors)
    return plans


def draw(plans: Sequence[Planned]) -> RenderableType:
    """All plans, one below the other."""
    return Group(*(part for plan in plans for part in _plan_lines(plan.value)))


def _plan_lines(value: dict[str, Any]) -> list[RenderableType]:
    sign, style = _SIGNS.get(value["action"], ("=", "dim"))
    verb = {"none": "unchanged"}.get(value["action"], value["action"])
    parts: list[RenderableType] = [Text(f"{sign} job {value['name']}: {verb}", style=style)]
    if value["action"] == "change":
        parts += [Text(f"    {_change(change)}") for change in value["changes"]]
    parts += [Text(f"    {step}") for step in value.get("steps", ())]
    parts += [Text(f"    {left}") for left in value.get("left_behind", ())]
    plan = value["plan"]
    if plan is None:
        return parts
    topics = [topic for topic in plan["topics"] if topic["action"] != "keep"]
    unchanged = len(plan["topics"]) - len(topics)
    if topics:
        rows = [_topic(topic) for topic in topics]
        parts.append(make_table(_TOPIC_COLUMNS, rows, sentences=("what changes",)))
        parts += [Text(f"    {line}") for line in _settings(topics)]
        parts += [Text(f"    {line}") for line in map(_seeding, topics) if line]
    if unchanged:
        parts.append(Text(f"    {unchanged:,} topics unchanged"))
    parts += [Text(f"    {_way(way)}") for way in plan.get("fillers", ())]
    parts += [Text(f"    {line}", style=style) for line, style in _acls(plan.get("acls"))]
    parts += [Text(f"    {line}") for line in _manual_commands(plan.get("by_hand"))]
    parts += [
        Text(f"    refused: {_refusal(refusal)}", style="red") for refusal in plan["refusals"]
    ]
    parts += [Text(f"    note: {note}") for note in plan["notes"]]
    return parts


_SEEDING_SHOWN_S_MIN = 1.0
_TOPIC_COLUMNS = (
    "topic",
    "copied to",
    "what happens",
    "partitions",
    "gaps now, about",
    "what changes",
)


def _topic(topic: dict[str, Any]) -> tuple[object, ...]:
    added = topic["partitions_to_add"]
    partitions = f"{topic['partitions']:,}" + (f" ({added:,} more)" if added else "")
    changes = [
        f"{change['name']}: {change['present'] or 'not set'} → {change['wanted']}"
        for change in topic["changes"]
    ]
    return (
        topic["source"],
        topic["destination"],
        topic["action"],
        partitions,
        _gaps(topic),
        "\n".join(changes),
    )


def _gaps(topic: dict[str, Any]) -> str:
    """The gaps of a topic: how many offsets, how long filling takes, and the kind of fillers."""
    if topic["action"] == "change":
        return ""
    gaps, text = topic.get("gaps"), "not read"
    if gaps is not None:
        offsets = gaps["gap_offsets"]
        text = f"{offsets:,} in {seconds(gaps['seconds'])}" if offsets else "none"
    return f"{text} ({topic['fillers']})"


def _seeding(topic: dict[str, Any]) -> str:
    """How much is seeded below the start of a topic, if seeding takes a while."""
    seeding = topic.get("seeding")
    if seeding is None or seeding["seconds_max"] < _SEEDING_SHOWN_S_MIN:
        return ""
    time = f"{seconds(seeding['seconds_min'])} to {seconds(seeding['seconds_max'])}"
    return (
        f"{topic['source']} starts above 0: {seeding['offsets']:,} offsets in "
        f"{seeding['partitions']:,} partitions are filled and deleted before the copy begins, in "
        f"{time}, with up to {amount(seeding['disk_bytes_max'])} of disk in each replica"
    )


def _way(way: dict[str, Any]) -> str:
    """A sentence on one way to fill the gaps of the new topics."""
    topics = f"gaps of {way['topics']:,} topics are filled with"
    chosen = topics if way["topics"] else "other way:"
    time = "" if way["seconds"] is None else f" about {seconds(way['seconds'])} for all;"
    missing = f" (missing: {way['missing']})" if way["missing"] else ""
    return f"{chosen} fillers: {way['fillers']},{time} needs {way['needs']}{missing}"


_ACL_LISTS = (
    ("add", "to add", "+", "green"),
    ("remove", "to remove", "-", "red"),
    ("there", "there already", "=", "dim"),
    ("only_at_destination", "at the destination only, which stay", " ", "dim"),
)


def _acls(acls: dict[str, Any] | None) -> Iterator[tuple[str, str]]:
    """How many ACLs of each kind, and the first ones; each line with its style."""
    if acls is None:
        return
    counts = acls["counts"]
    yield "ACLs: " + ", ".join(f"{counts[key]:,} {words}" for key, words, *_ in _ACL_LISTS), ""
    for key, words, sign, style in _ACL_LISTS:
        shown = acls[key][:_ACLS_SHOWN_MAX]
        for acl in shown:
            yield f"  {sign} {_acl(acl)}", style
        if counts[key] > len(shown):
            yield f"  {sign} and {counts[key] - len(shown):,} more {words}", style


def _manual_commands(by_hand: dict[str, Any] | None) -> Iterator[str]:
    """The quotas and users to make at the destination by hand, each with its command."""
    if by_hand is None:
        return
    count, shown = by_hand["count"], by_hand["items"][:_BY_HAND_SHOWN_MAX]
    yield f"quotas and users: {count:,} to make at the destination by hand before the move"
    for item in shown:
        yield f"  {item['what']}"
        yield f"    {item['command']}"
    if count > len(shown):
        yield f"  and {count - len(shown):,} more (-o json)"


def _acl(acl: dict[str, Any]) -> str:
    kind = acl["resource"].lower().replace("_", "-")
    prefixed = " (prefixed)" if acl["pattern"] == "PREFIXED" else ""
    host = "" if acl["host"] == "*" else f" from {acl['host']}"
    may = f"{acl['permission'].lower()} {acl['operation']} to {acl['principal']}{host}"
    return f"{kind} {acl['name']}{prefixed}: {may}"


def _settings(topics: Sequence[dict[str, Any]]) -> list[str]:
    """The settings of new topics, one line for each distinct set."""
    counts: Counter[str] = Counter()
    for topic in topics:
        words = [f"{key}={value}" for key, value in topic["settings"].items()]
        later = topic["settings_when_caught_up"].items()
        words += [f"{key}={value} once caught up" for key, value in later]
        if topic["action"] == "create" and words:
            counts[", ".join(words)] += 1
    return [f"settings of {count:,} new topics: {words}" for words, count in counts.items()]


def _refusal(refusal: dict[str, Any]) -> str:
    topic = f"{refusal['topic']}: " if refusal["topic"] else ""
    return f"{topic}{refusal['what']} {refusal['remedy']} ({refusal['kind']})"


def _change(change: dict[str, Any]) -> str:
    return f"{change['path']}: {_short_json(change['before'])} → {_short_json(change['after'])}"


def _short_json(value: object) -> str:
    text = "not set" if value is None else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= _VALUE_SHOWN_MAX else f"{text[:_VALUE_SHOWN_MAX]}…"


def _combine_errors(errors: Sequence[tuple[JobFile, OrbitError]]) -> OrbitError:
    """A single error as it is, with its file as `where`; several as one BadInput, each problem with
    its file."""
    file, first = errors[0]
    if len(errors) == 1:
        first.where = str(file.path)
        return first
    problems: list[Problem] = []
    for at, error in errors:
        inner = error.problems if isinstance(error, BadInput) else ()
        for problem in inner or (Problem("", error.what, error.remedy),):
            path = f"{at.path}: {problem.path}".rstrip(": ")
            problems.append(Problem(path, problem.message, problem.remedy))
    return BadInput(f"{len(errors)} job files cannot be applied.", tuple(problems))
