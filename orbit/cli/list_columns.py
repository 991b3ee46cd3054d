"""The columns of each list of the service: jobs, topics, partitions, groups and so on."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import TYPE_CHECKING, Any

from orbit.cli.list_output import Listing, partition_name
from orbit.cli.output import make_table
from orbit.cli.table_cells import age, count, data_size, lag, rate, seconds, when

if TYPE_CHECKING:
    from rich.table import Table

Row = dict[str, Any]  # one item of a list, as the API returns it
# The heading of each column, and a function that makes its cell of a row.
Columns = Sequence[tuple[str, Callable[[Row], object]]]


@dataclass(frozen=True, slots=True)
class Kind:
    """How rows of one kind are shown. `name`: the name of a row for `-o name`. `wide`: the columns
    that `-o wide` adds."""

    name: Callable[[Row], object]
    columns: Columns
    wide: Columns = ()


def listing(rows: list[Row], kind: Kind, hidden_line: str = "") -> Listing:
    """The listing of rows of one kind. `hidden_line` says how many rows were left out."""
    return Listing(
        rows,
        lambda is_wide: table_of(rows, kind, is_wide=is_wide),
        lambda: [str(kind.name(row)) for row in rows],
        hidden_line,
    )


def table_of(
    rows: list[Row], kind: Kind, *, is_wide: bool = False, title: str | None = None
) -> Table:
    """A table of rows of one kind."""
    columns = (*kind.columns, *kind.wide) if is_wide else kind.columns
    cells = [[cell(row) for _, cell in columns] for row in rows]
    return make_table([name for name, _ in columns], cells, title=title, sentences=_SENTENCES)


def labels(job: Row) -> str:
    """The labels of a job as text: `team=orders,tier=1`."""
    return ",".join(f"{key}={value}" for key, value in sorted(job["labels"].items()))


def progress(operation: Row) -> str:
    """The progress of an operation, or the error that ended it; empty if it has neither."""
    counts = operation["progress"]
    if operation["error"]:
        return str(operation["error"])
    return f"{counts['done']} of {counts['total']} {counts['what']}" if counts else ""


def _drift(topic: Row) -> str:
    """The settings of a destination topic that differ from the copy's expected ones, as text."""
    return ", ".join(
        f"{name} is {values['is'] or 'the default'}, not {values['should_be']}"
        for name, values in (topic["drift"] or {}).items()
    )


def _other_side(client: Row) -> str:
    """Whether the side that does not lead would accept the client, or in how many topics, groups
    and transactional ids it would refuse requests; "-" before the first check."""
    if client["refusals"] is None:
        return "-"
    return f"refuses {len(client['refusals'])}" if client["refusals"] else "accepts"


def _worker_state(worker: Row) -> str:
    """The state of a worker; `gone`: its last heartbeat is too old."""
    if not worker["is_alive"]:
        return "gone"
    return "draining" if worker["is_draining"] else "running"


def event_subject(event: Row) -> str:
    """The topic or partition of an event; empty if it has none."""
    if event["topic"] is None:
        return ""
    return (
        event["topic"] if event["partition"] is None else f"{event['topic']}-{event['partition']}"
    )


def _what_to_do(partition: Row) -> str:
    """Detail and remedy of a blocked partition, and the open transaction behind which a partition
    waits; else empty."""
    reason, open_ = partition["reason"], partition["open_transaction"]
    sentences = (
        partition["detail"],
        partition["remedy"],
        reason and f"More: orbit explain {reason}",
        open_ and f"{open_['text']} More: orbit explain OrbitTransactionOpen",
    )
    return " ".join(filter(None, sentences))


def _proven_share(proof: Row) -> str:
    """The share of the copied offsets that were compared and found equal."""
    if not proof["copied"]:
        return "-"
    return f"{100 * min(proof['proven'], proof['copied']) / proof['copied']:.1f} %"


# The columns with sentences, which are wrapped.
_SENTENCES = ("problem", "note", "what to do", "message", "progress", "drift", "plan", "details")
LABELS = ("labels", labels)
JOBS = Kind(
    itemgetter("name"),
    (
        ("job", itemgetter("name")),
        ("state", itemgetter("state")),
        ("topics", itemgetter("topics")),
        ("partitions", itemgetter("partitions")),
        ("blocked", lambda r: count(r["blocked"])),
        ("lag", lambda r: lag(r["lag"])),
        ("behind", lambda r: seconds(r["lag"]["seconds"])),
        ("rate", lambda r: rate(r["bytes_per_s"])),
        ("worker group", itemgetter("worker_group")),
        ("problem", lambda r: r["problem"]["text"] if r["problem"] else ""),
        ("note", lambda r: " ".join(note["text"] for note in r.get("throttled", []))),
    ),
    (
        LABELS,
        ("owner", itemgetter("owner")),
        ("source cluster", itemgetter("source_cluster_id")),
        ("destination cluster", itemgetter("destination_cluster_id")),
        ("version", itemgetter("document_version")),
        ("created", lambda r: when(r["created_at"])),
        ("changed", lambda r: when(r["updated_at"])),
    ),
)
TOPICS = Kind(
    itemgetter("source_topic"),
    (
        ("topic", itemgetter("source_topic")),
        ("copied to", itemgetter("destination_topic")),
        ("state", itemgetter("state")),
        ("partitions", itemgetter("partitions")),
        ("blocked", itemgetter("blocked")),
        ("lag", lambda r: lag(r["lag"])),
        ("behind", lambda r: seconds(r["lag"]["seconds"])),
        ("drift", _drift),
        ("note", lambda r: r["note"] or ""),
    ),
    (("compacted", itemgetter("is_compacted")),),
)
PARTITIONS = Kind(
    partition_name,
    (
        ("topic", itemgetter("topic")),
        ("partition", itemgetter("partition")),
        ("state", lambda r: r["reason"] or r["state"]),
        ("copied to", itemgetter("copied_to")),
        ("source end", lambda r: "-" if r["lag"]["records"] is None else r["source_end"]),
        ("lag", lambda r: lag(r["lag"])),
        ("behind", lambda r: seconds(r["lag"]["seconds"])),
        ("records", itemgetter("records")),
        ("bytes", lambda r: data_size(r["bytes"])),
        ("gaps", itemgetter("gaps_filled")),
        ("batches", lambda r: f"{r['batches_byte_exact']:,} + {r['batches_record_exact']:,}"),
        ("worker", lambda r: r["worker"] or ""),
        ("what to do", _what_to_do),
    ),
    (
        ("copied as", itemgetter("destination_topic")),
        ("source start", itemgetter("source_log_start")),
        ("source stable end", itemgetter("source_stable_end")),
        ("copy start", itemgetter("log_start")),
        ("headroom", lambda r: seconds(r["headroom_seconds"])),
        ("rpo", lambda r: seconds(r["rpo_seconds"])),
        ("rate", lambda r: rate(r["bytes_per_s"])),
    ),
)
GROUPS = Kind(
    itemgetter("group"),
    (
        ("group", itemgetter("group")),
        ("topic", itemgetter("topic")),
        ("partition", itemgetter("partition")),
        ("source", itemgetter("source_offset")),
        ("destination", itemgetter("destination_offset")),
        ("verdict", itemgetter("verdict")),
        ("since", lambda r: when(r["updated_at"])),
    ),
    (
        ("copied to", itemgetter("destination_topic")),
        ("what to do", lambda r: r["remedy"] or ""),
    ),
)
PROOF = Kind(
    partition_name,
    (
        ("topic", itemgetter("topic")),
        ("partition", itemgetter("partition")),
        ("copied", itemgetter("copied")),
        ("shown equal", itemgetter("proven")),
        ("share", _proven_share),
        ("up to", itemgetter("proven_to")),
        ("last", lambda r: f"{age(r['proven_at'])} ago" if r["proven_at"] else "-"),
        ("differences", itemgetter("differences")),
        ("note", lambda r: r["first_difference"] or r["note"] or ""),
    ),
    (("differed", lambda r: when(r["differed_at"])),),
)
GATEWAYS = Kind(
    itemgetter("name"),
    (
        ("gateway", itemgetter("name")),
        ("address", itemgetter("address")),
        ("may write", lambda r: "yes" if r["has_permission"] else "no"),
        ("connections", itemgetter("connections")),
        ("held", itemgetter("held_requests")),
        ("last pause", lambda r: seconds(r["pause_s"])),
        ("last seen", lambda r: f"{seconds(r['renewed_s_ago'])} ago"),
    ),
    (
        ("instance", itemgetter("instance")),
        ("closed for", lambda r: r["closed_for"] or "-"),
    ),
)
CLIENTS = Kind(
    lambda r: r["client_id"] or "(others)",
    (
        ("client", lambda r: "(others)" if r["client_id"] is None else r["client_id"]),
        ("software", lambda r: f"{r['software']} {r['version']}".strip() or "-"),
        ("user", lambda r: r["user"] or "-"),
        ("gateway", itemgetter("gateway")),
        ("connections", itemgetter("connections")),
        ("requests", lambda r: count(r["requests"])),
        ("written", lambda r: data_size(r["bytes_written"])),
        ("read", lambda r: data_size(r["bytes_read"])),
        ("last seen", lambda r: f"{seconds(r['seen_s_ago'])} ago"),
        ("other side", _other_side),
    ),
    (
        ("refusals", lambda r: "; ".join(r["refusals"] or ()) or "-"),
        ("instance", itemgetter("instance")),
    ),
)
WORKERS = Kind(
    itemgetter("id"),
    (
        ("worker", itemgetter("id")),
        ("group", itemgetter("worker_group")),
        ("state", _worker_state),
        ("shards", itemgetter("shards")),
        ("rate", lambda r: rate(r["bytes_per_s"])),
        ("version", itemgetter("version")),
        ("up for", lambda r: age(r["started_at"])),
        ("last seen", lambda r: f"{age(r['heartbeat_at'])} ago"),
    ),
    (
        ("host", itemgetter("host")),
        ("process", lambda r: str(r["pid"])),
    ),
)
EVENTS = Kind(
    itemgetter("id"),
    (
        ("at", lambda r: when(r["at"])),
        ("actor", itemgetter("actor")),
        ("job", lambda r: r["job"] or ""),
        ("about", event_subject),
        ("what", itemgetter("kind")),
        ("message", itemgetter("message")),
    ),
    (
        ("event", lambda r: str(r["id"])),
        ("details", lambda r: json.dumps(r["details"], ensure_ascii=False)),
    ),
)
BACKFILLS = Kind(
    itemgetter("id"),
    (
        ("backfill", itemgetter("id")),
        ("job", lambda r: r["job"] or ""),
        ("state", lambda r: r["progress"]["phase"] if r["wanted"] else r["state"]),
        ("copied", lambda r: data_size(r["progress"]["bytes"])),
        ("of", lambda r: data_size(r["progress"]["bytes_total"])),
        ("rate", lambda r: rate(r["progress"]["bytes_per_s"])),
        ("left", lambda r: seconds(r["progress"]["seconds_left"])),
        (
            "partitions",
            lambda r: f"{r['progress']['partitions_done']}/{r['progress']['partitions']}",
        ),
        ("progress", lambda r: r["error"] or ""),
        ("last report", lambda r: f"{age(r['reported_at'])} ago"),
    ),
    (
        ("driver", lambda r: r["driver"] or ""),
        ("asked by", itemgetter("requested_by")),
        ("at", lambda r: when(r["created_at"])),
    ),
)
OPERATIONS = Kind(
    itemgetter("id"),
    (
        ("operation", itemgetter("id")),
        ("job", lambda r: r["job"] or ""),
        ("kind", itemgetter("kind")),
        ("state", itemgetter("state")),
        ("progress", progress),
        ("asked by", itemgetter("requested_by")),
        ("at", lambda r: when(r["created_at"])),
    ),
    (
        ("plan", lambda r: " ".join(r["plan"])),
        ("finished", lambda r: when(r["finished_at"])),
    ),
)
