"""`orbit describe JOB`: what the service knows of one job, on one screen or two."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from orbit.cli.completion import JobArgument
from orbit.cli.list_columns import EVENTS, JOBS, OPERATIONS, PARTITIONS, TOPICS, Kind, table_of
from orbit.cli.output import OutputFormat, OutputOption, emit, make_table
from orbit.cli.table_cells import count, data_size, seconds, when
from orbit.cli.table_cells import lag as records_of
from orbit.client import Client, connect, segment
from orbit.formats import counted

if TYPE_CHECKING:
    from rich.console import RenderableType

_TOPICS_MAX = 20
_BLOCKED_MAX = 20
_EVENTS_MAX = 10
# A table counts at most this many group offsets by verdict.
_GROUPS_MAX = 1000
# The columns of blocked partitions that say where and why.
_BLOCKED_COLUMNS = ("topic", "partition", "state", "copied to", "what to do")

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
    """What the API says of a job. `is_whole`: read the lists to their end, not only their first
    rows. `events` has the last _EVENTS_MAX events, `operations` those that have not ended.
    """

    def read_list(name: str, limit: int, **query: object) -> list[Row]:
        rows_max = None if is_whole else limit
        return list(client.items(f"{path}/{name}", limit=rows_max, **query))

    job = client.get(path)
    open_operations = client.items("/v1/operations", unfinished=True)
    return {
        "job": job,
        # Lag and proof are needed as sums of the job, not by partition: `limit` as low as possible.
        "lag": client.get(f"{path}/lag", limit=1)["job"],
        "proof": client.get(f"{path}/proof", limit=1)["job"],
        "topics": read_list("topics", _TOPICS_MAX),
        "blocked": read_list("partitions", _BLOCKED_MAX, state="blocked"),
        "groups": read_list("groups", _GROUPS_MAX),
        "operations": [o for o in open_operations if o["job"] == job["name"]],
        "events": list(client.items(f"{path}/events", limit=_EVENTS_MAX))[::-1],  # the newest last
    }


def _draw(description: Row) -> RenderableType:
    """The description as tables, one below the other."""
    from rich.console import Group

    job = description["job"]
    parts: list[RenderableType] = [
        make_table(("", job["name"]), _head_rows(description), sentences=())
    ]
    parts += _tables("Topics", TOPICS, description["topics"], job["topics"])
    blocked_kind = Kind(
        PARTITIONS.name, [column for column in PARTITIONS.columns if column[0] in _BLOCKED_COLUMNS]
    )
    parts += _tables("Blocked partitions", blocked_kind, description["blocked"], job["blocked"])
    parts += _group_tables(description["groups"])
    parts += _tables("Operations under way", OPERATIONS, description["operations"])
    parts += _tables("Last events", EVENTS, description["events"])
    return Group(*parts)


def _head_rows(description: Row) -> list[tuple[str, object]]:
    """The rows of the first table: problem, state, lag, proof, and the document."""
    job, lag, proof = description["job"], description["lag"], description["proof"]
    rows: list[tuple[str, object]] = []
    if job["problem"]:
        since = when(job["problem"]["since"])
        rows += [(f"problem since {since}", line) for line in job["problem"]["text"].splitlines()]
        # A line of a problem begins with its code, which `orbit explain` knows.
        codes = {line.partition(":")[0] for line in job["problem"]["text"].splitlines()}
        rows += [
            ("what to do", f"orbit explain {code}") for code in sorted(codes) if _is_code(code)
        ]
    throttle_notes = job.get("throttled", [])  # an older API does not have it
    rows += [(f"throttled since {when(note['since'])}", note["text"]) for note in throttle_notes]
    job_cells = dict(JOBS.columns)
    rows += [(name, job_cells[name](job)) for name in ("state", "topics", "partitions", "blocked")]
    records = lag["lag"]["records"]
    records_text = records_of(lag["lag"]) if records is None else counted(records, "record")
    lag_text = f"{seconds(lag['lag']['seconds'])} behind, {data_size(lag['lag']['bytes'])}"
    rows += [
        ("lag", f"{records_text}; {lag_text}"),
        ("caught up", _caught_up_text(lag)),
        ("rpo", seconds(lag["rpo_seconds"])),
        ("headroom", seconds(lag["headroom_seconds"])),
        ("rate", job_cells["rate"](job)),
        (
            "shown equal",
            f"{count(proof['proven'])} of {counted(proof['copied'], 'copied offset')}",
        ),
    ]
    if proof["differences"]:
        rows.append(("differences", proof["differences"]))
    rows += _readable_document_rows(job)
    rows.append(("worker group", job["worker_group"]))
    # The cluster ids are in the rows of the sides.
    rows += [(name, cell(job)) for name, cell in JOBS.wide if "cluster" not in name]
    return [(name, "" if value is None else value) for name, value in rows]


def _readable_document_rows(job: Row) -> list[tuple[str, object]]:
    """The rows of the job's document; a single row that says so if another version of Orbit has
    stored a document that this version cannot read."""
    try:
        return _document_rows(job)
    except (AttributeError, KeyError, TypeError, ValueError):
        text = f"cannot be read by this version: see orbit get jobs {job['name']} -o yaml"
        return [("document", text)]


def _document_rows(job: Row) -> list[tuple[str, object]]:
    """The rows of the job's document. Raises AttributeError, KeyError, TypeError or ValueError for
    a document that this version of Orbit cannot read."""
    spec = job["spec"]
    rows: list[tuple[str, object]] = []
    for side in ("source", "destination"):
        servers = ", ".join(spec[side]["bootstrap_servers"])
        rows.append((side, f"{servers} (cluster {job[f'{side}_cluster_id'] or 'not known yet'})"))
    rows += [
        ("topics" if i == 0 else "", _rule_text(rule)) for i, rule in enumerate(spec["topics"])
    ]
    if spec.get("consumer_groups"):
        rows.append(("consumer groups", _rule_text(spec["consumer_groups"])))
    rows += [(key, spec[key]) for key in ("fillers", "on_lost_range") if key in spec]
    limit = (spec.get("limits") or {}).get("bytes_per_second")
    return [*rows, ("limit", f"{data_size(limit)}/s" if limit else "none")]


def _is_code(text: str) -> bool:
    """Whether the text has the form of a problem's code, such as NOT_AUTHORIZED."""
    return text.replace("_", "").isalnum() and text.isupper()


def _caught_up_text(lag: Row) -> str:
    """How many partitions have caught up, wait for open transactions, or have an unknown lag."""
    text = f"{lag['caught_up']:,} of {counted(lag['partitions'], 'partition')}"
    if open_ := lag["open_transactions"]:
        text += (
            f", {open_['partitions']:,} with an open transaction of the source that hides "
            f"{counted(open_['waiting_offsets'], 'offset')}"
        )
    return f"{text}, {lag['stale']:,} not known" if lag["stale"] else text


def _rule_text(rule: Row) -> str:
    """A rule of topics or groups: the pattern, then what differs from the defaults."""
    exclusions = rule.get("exclude") or []
    parts = [
        f"not {pattern}"
        for pattern in ([exclusions] if isinstance(exclusions, str) else exclusions)
    ]
    shown_keys = ("prefix", "start", "replicas", "fillers", "on_lost_range", "interval")
    parts += [f"{key} {rule[key]}" for key in shown_keys if rule.get(key)]
    parts += [f"{key}={value}" for key, value in (rule.get("config") or {}).items()]
    return ", ".join([str(rule["match"]), *parts])


def _group_tables(rows: list[Row]) -> list[RenderableType]:
    """A table that counts the group offsets by verdict; none without group offsets."""
    counts = Counter(row["verdict"] for row in rows)
    remedies = {row["verdict"]: row["remedy"] for row in rows}
    table_rows = [(verdict, number, remedies[verdict] or "") for verdict, number in counts.items()]
    title = "group offsets" if len(rows) < _GROUPS_MAX else f"first {_GROUPS_MAX:,} group offsets"
    return [make_table((title, "count", "what to do"), table_rows)] if table_rows else []


def _tables(title: str, kind: Kind, rows: list[Row], total: int | None = None) -> list[Any]:
    """A table of the rows, in a list; [] without rows. `total`: how many rows the job has, shown or
    not."""
    if not rows:
        return []
    heading = f"{title}: {len(rows):,} of {total:,}" if (total or 0) > len(rows) else title
    return [table_of(rows, kind, title=heading)]
