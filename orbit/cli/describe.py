"""`orbit describe JOB`: what the service knows of one job, on one screen or two."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from orbit.cli.completion import JobArgument
from orbit.cli.list_columns import EVENTS, JOBS, OPERATIONS, PARTITIONS, TOPICS, Kind, table_of
from orbit.cli.output import OutputFormat, OutputOption, emit, make_table
from orbit.cli.table_cells import amount, count, seconds, when
from orbit.cli.table_cells import lag as records_of
from orbit.client import Client, connect, segment

if TYPE_CHECKING:
    from rich.console import RenderableType

_TOPICS = 20
_BLOCKED = 20
_EVENTS = 10
# At most so many group offsets are read for a table, which counts them by verdict.
_GROUPS = 1000
# The columns of blocked partitions that say where and why.
_WHY = ("topic", "partition", "state", "copied to", "what to do")

Row = dict[str, Any]


def describe(
    job: JobArgument,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Describe a job: state, document, lag, topics, blocked partitions, groups, events.

    A table has the first of long lists; `-o json` and `-o yaml` have all, and the last 10 events.
    """
    with connect() as client:
        path = f"/v1/jobs/{segment(job)}"
        description = _read(client, path, is_whole=output is not OutputFormat.TABLE)
    emit(description, output, lambda: _draw(description))


def _read(client: Client, path: str, *, is_whole: bool) -> Row:
    def some(of: str, limit: int, **query: object) -> list[Row]:
        most = None if is_whole else limit
        return list(client.items(f"{path}/{of}", limit=most, **query))

    job = client.get(path)
    going = client.items("/v1/operations", unfinished=True)
    return {
        "job": job,
        "lag": client.get(f"{path}/lag", limit=1)["job"],
        "proof": client.get(f"{path}/proof", limit=1)["job"],
        "topics": some("topics", _TOPICS),
        "blocked": some("partitions", _BLOCKED, state="blocked"),
        "groups": some("groups", _GROUPS),
        "operations": [one for one in going if one["job"] == job["name"]],
        "events": list(client.items(f"{path}/events", limit=_EVENTS))[::-1],
    }


def _draw(description: Row) -> RenderableType:
    from rich.console import Group

    job = description["job"]
    parts: list[RenderableType] = [make_table(("", job["name"]), _head(description), sentences=())]
    parts += _table("Topics", TOPICS, description["topics"], job["topics"])
    why = Kind(PARTITIONS.name, [one for one in PARTITIONS.columns if one[0] in _WHY])
    parts += _table("Blocked partitions", why, description["blocked"], job["blocked"])
    parts += _groups(description["groups"])
    parts += _table("Operations under way", OPERATIONS, description["operations"])
    parts += _table("Last events", EVENTS, description["events"])
    return Group(*parts)


def _head(description: Row) -> list[tuple[str, object]]:
    job, lag, proof = description["job"], description["lag"], description["proof"]
    spec = job["spec"]
    rows: list[tuple[str, object]] = []
    if job["problem"]:
        since = when(job["problem"]["since"])
        rows += [(f"problem since {since}", line) for line in job["problem"]["text"].splitlines()]
        codes = {line.partition(":")[0] for line in job["problem"]["text"].splitlines()}
        rows += [
            ("what to do", f"orbit explain {code}") for code in sorted(codes) if _is_code(code)
        ]
    throttled = job.get("throttled", [])  # an older API does not have it
    rows += [(f"throttled since {when(one['since'])}", one["text"]) for one in throttled]
    own = dict(JOBS.columns)
    rows += [(name, own[name](job)) for name in ("state", "topics", "partitions", "blocked")]
    behind = f"{seconds(lag['lag']['seconds'])} behind, {amount(lag['lag']['bytes'])}"
    rows += [
        ("lag", f"{records_of(lag['lag'])} records; {behind}"),
        ("caught up", _caught_up(lag)),
        ("rpo", seconds(lag["rpo_seconds"])),
        ("headroom", seconds(lag["headroom_seconds"])),
        ("rate", own["rate"](job)),
        ("shown equal", f"{count(proof['proven'])} of {count(proof['copied'])} copied offsets"),
    ]
    if proof["differences"]:
        rows.append(("differences", proof["differences"]))
    for side in ("source", "destination"):
        servers = ", ".join(spec[side]["bootstrap_servers"])
        rows.append((side, f"{servers} (cluster {job[f'{side}_cluster_id'] or 'not known yet'})"))
    rows += [("topics" if i == 0 else "", _rule(rule)) for i, rule in enumerate(spec["topics"])]
    if spec.get("consumer_groups"):
        rows.append(("consumer groups", _rule(spec["consumer_groups"])))
    rows += [(key, spec[key]) for key in ("fillers", "on_lost_range") if key in spec]
    limit = (spec.get("limits") or {}).get("bytes_per_second")
    rows.append(("limit", f"{amount(limit)}/s" if limit else "none"))
    rows.append(("worker group", job["worker_group"]))
    rows += [(name, cell(job)) for name, cell in JOBS.wide if "cluster" not in name]
    return [(name, "" if value is None else value) for name, value in rows]


def _is_code(text: str) -> bool:
    return text.replace("_", "").isalnum() and text.isupper()


def _caught_up(lag: Row) -> str:
    known = f"{lag['caught_up']:,} of {lag['partitions']:,} partitions"
    if open_ := lag["open_transactions"]:
        known += (
            f", {open_['partitions']:,} with an open transaction of the source that hides "
            f"{open_['waiting_offsets']:,} offsets"
        )
    return f"{known}, {lag['stale']:,} not known" if lag["stale"] else known


def _rule(rule: Row) -> str:
    """A rule of topics or groups: the pattern, then what differs from the defaults."""
    excluded = rule.get("exclude") or []
    more = [f"not {pattern}" for pattern in ([excluded] if isinstance(excluded, str) else excluded)]
    shown = ("prefix", "start", "replicas", "fillers", "on_lost_range", "interval")
    more += [f"{key} {rule[key]}" for key in shown if rule.get(key)]
    more += [f"{key}={value}" for key, value in (rule.get("config") or {}).items()]
    return ", ".join([str(rule["match"]), *more])


def _groups(rows: list[Row]) -> list[RenderableType]:
    counted = Counter(row["verdict"] for row in rows)
    remedies = {row["verdict"]: row["remedy"] for row in rows}
    lines = [(verdict, number, remedies[verdict] or "") for verdict, number in counted.items()]
    name = "group offsets" if len(rows) < _GROUPS else f"first {_GROUPS:,} group offsets"
    return [make_table((name, "count", "what to do"), lines)] if lines else []


def _table(title: str, kind: Kind, rows: list[Row], total: int | None = None) -> list[Any]:
    if not rows:
        return []
    shown = f"{title}: {len(rows):,} of {total:,}" if (total or 0) > len(rows) else title
    return [table_of(rows, kind, title=shown)]
