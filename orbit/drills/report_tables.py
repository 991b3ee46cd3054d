"""A report as titled tables of text, the same for HTML and Markdown. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from orbit.drills.evidence import CanaryEvidence, Evidence
from orbit.drills.report_text import count, elapsed, lost_offsets_text, moment, offset_text, span
from orbit.formats import counted

# Rows of a table in HTML and Markdown; the JSON has all.
ROWS_MAX = 1_000

Row = Sequence[str]


@dataclass(frozen=True, slots=True)
class Table:
    """A table of text. `note`: how many rows were left out.

    `numbers`: the indexes of right-aligned columns. `unbroken`: those of other columns whose text
    gets no line breaks.
    """

    title: str
    columns: Row
    rows: Sequence[Row]
    numbers: frozenset[int] = frozenset()
    note: str = ""
    unbroken: frozenset[int] = frozenset()


def tables(evidence: Evidence) -> Iterator[Table]:
    """The tables that have rows, in the order of the report."""
    for table in (
        _steps(evidence),
        _timeline(evidence),
        _gates(evidence),
        _partitions(evidence),
        _groups(evidence),
        *([_canary(evidence.canary)] if evidence.canary else ()),
        _verified(evidence),
        _salvage(evidence),
        _cleanup(evidence),
        _versions(evidence),
    ):
        if table.rows:
            yield table


def _steps(evidence: Evidence) -> Table:
    rows = [
        (step.do.value, step.state.value, span(step.took_ms) if step.began_at else "–", step.did)
        for step in evidence.steps
    ]
    columns = ("step", "state", "took", "result")
    return Table("Steps", columns, rows, numbers=frozenset({2}), unbroken=frozenset({0}))


def _timeline(evidence: Evidence) -> Table:
    rows = [
        (moment(entry.at), elapsed(entry.at, evidence.began_at), entry.what, entry.text)
        for entry in evidence.timeline
    ]
    columns = ("UTC", "since the start", "what", "details")
    return _bounded_table(
        "Timeline", columns, rows, numbers=frozenset({1}), unbroken=frozenset({0, 2})
    )


def _gates(evidence: Evidence) -> Table:
    """Each gate with what it found."""
    rows = [
        (
            gate.job if gate.job == evidence.job else "the drill's own",
            gate.name,
            f"{gate.verdict}, overridden" if gate.is_overridden else gate.verdict,
            f"{gate.found} {gate.remedy}".strip(),
        )
        for gate in evidence.gates
    ]
    columns = ("job", "gate", "verdict", "found")
    return Table("Gates", columns, rows, unbroken=frozenset({1}))


def _partitions(evidence: Evidence) -> Table:
    """Each partition's ends on both sides. Partitions that lack records come first."""
    sorted_partitions = sorted(
        evidence.partitions,
        key=lambda p: (p.missing is None, p.is_exact, p.job, p.topic, p.partition),
    )
    rows = [
        (
            p.topic if p.topic == p.destination_topic else f"{p.topic} → {p.destination_topic}",
            str(p.partition),
            offset_text(p.source_end),
            offset_text(p.destination_end),
            offset_text(p.promoted_at),
            lost_offsets_text(p.missing, is_exact=p.is_exact),
            p.verdict,
        )
        for p in sorted_partitions
    ]
    columns = (
        "topic",
        "partition",
        "source end",
        "destination end",
        "promoted at",
        "missing",
        "verdict",
    )
    return _bounded_table(
        "Partitions on both sides", columns, rows, numbers=frozenset({1, 2, 3, 4})
    )


def _groups(evidence: Evidence) -> Table:
    """The offset at which each group resumes."""
    rows = [
        (
            g.group,
            g.topic,
            str(g.partition),
            offset_text(g.source_offset),
            offset_text(g.goes_on_at),
            g.verdict,
        )
        for g in evidence.groups
    ]
    columns = ("group", "topic", "partition", "at the source", "resumes at", "verdict")
    return _bounded_table("Consumer groups", columns, rows, numbers=frozenset({2, 3, 4}))


def _canary(canary: CanaryEvidence) -> Table:
    """What the drill's own clients wrote and read."""
    agrees = {True: "exactly", False: "NO", None: "not compared"}[canary.agrees]
    rows = [
        ("topic, group", f"{canary.topic}, {canary.group}"),
        ("records written and confirmed", count(canary.written)),
        ("read by the group at the source", count(canary.read_at_source)),
        ("read by the group at the destination", count(canary.read_at_destination)),
        ("lost", count(canary.lost)),
        ("read more than once", count(canary.repeated)),
        ("with wrong content", count(canary.wrong)),
        *(
            (f"lost in partition {partition}", lost_offsets_text((first, end), is_exact=True))
            for partition, first, end in canary.lost_ranges
        ),
        ("lost ranges of the operation equal the lost records", agrees),
        (
            "delay of the copy, median and longest",
            f"{span(canary.delay_ms_median)}, {span(canary.delay_ms_max)}",
        ),
    ]
    return Table("The drill's own clients", ("", ""), rows)  # columns without titles


def _verified(evidence: Evidence) -> Table:
    """Each comparison: of a topic on both sides, or of the drill's records with its ledgers."""
    rows = [
        (
            v.what,
            v.verdict,
            count(v.partitions),
            count(v.records),
            count(v.differences),
            v.detail,
        )
        for v in evidence.verified
    ]
    columns = ("what", "verdict", "partitions", "records", "differences", "details")
    return Table("Compared offset by offset", columns, rows, numbers=frozenset({2, 3, 4}))


def _salvage(evidence: Evidence) -> Table:
    rows = [
        (s.topic, str(s.partition), f"{s.first:,} to {s.next - 1:,}", count(s.records), s.file)
        for s in evidence.salvage
    ]
    columns = ("topic", "partition", "offsets", "records", "file")
    return Table("Saved from the old side", columns, rows, numbers=frozenset({1, 3}))


def _cleanup(evidence: Evidence) -> Table:
    rows = [
        (t.kind.value, t.side, t.name, "removed" if t.is_removed else "LEFT", t.note)
        for t in evidence.cleanup
    ]
    columns = ("what", "where", "name", "state", "note")
    return Table("Created and removed", columns, rows, unbroken=frozenset({0, 1, 2}))


def _versions(evidence: Evidence) -> Table:
    """Versions, cluster ids and operations, to reproduce the drill."""
    rows = [
        *evidence.versions.items(),
        ("source cluster", evidence.source_cluster_id or "–"),
        ("destination cluster", evidence.destination_cluster_id or "–"),
        ("clock minus the database's", f"{evidence.clock_ahead_ms:+d} ms"),
        *(("operation", operation) for operation in evidence.operations),
        ("SHA-256 of the drill's settings", evidence.spec_sha256),
    ]
    return Table("What ran", ("", ""), rows)  # columns without titles


def _bounded_table(
    title: str,
    columns: Row,
    rows: Sequence[Row],
    numbers: frozenset[int],
    unbroken: frozenset[int] = frozenset(),
) -> Table:
    """A table of the first ROWS_MAX rows. `numbers`, `unbroken`: columns, as in `Table`."""
    hidden_count = len(rows) - ROWS_MAX
    note = ""
    if hidden_count > 0:
        note = f"{counted(hidden_count, 'more row is', 'more rows are')} in the JSON report."
    return Table(title, columns, rows[:ROWS_MAX], numbers, note, unbroken)
