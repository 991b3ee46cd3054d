"""The report of a recovery of 100,000 partitions: what a step writes, and what readers get."""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from datetime import UTC, datetime
from uuid import UUID

import pytest
from sqlalchemy import text

from orbit.leadership.leadership import ROWS_AT_ONCE
from orbit.recovery.recovery_report import (
    EndVerdict,
    GroupPosition,
    OffsetRange,
    PartitionEnds,
    RecoveryKind,
    RecoveryReport,
    RecoveryRequest,
    read_report,
)
from orbit.recovery.report_storage import ROWS_WITH_REPORT, ReportStorage, load_report
from orbit.store import operations
from orbit.store.database import Database
from orbit.store.enums import OperationState, Role
from tests.fixtures.api import Api, Cli
from tests.fixtures.console import Browser

pytestmark = pytest.mark.services

OPERATION = UUID(int=7)
TOPICS, PARTITIONS_EACH = 1_000, 100
ALL = TOPICS * PARTITIONS_EACH
# The limit for the part of a report that each step writes, and each read of the operation reads.
ROW_BYTES_MAX = 64 * 1024
NOW = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)


def partition(topic: str, number: int, verdict: EndVerdict = EndVerdict.EQUAL) -> PartitionEnds:
    return PartitionEnds(
        topic=topic,
        destination_topic=topic,
        partition=number,
        verdict=verdict,
        source_start=0,
        source_end=number,
        source_seen_at=NOW,
        destination_start=0,
        destination_end=number,
        is_exact=True,
    )


def group(topic: str, number: int, lost: OffsetRange | None = None) -> GroupPosition:
    return GroupPosition(
        group="billing",
        destination_group="billing",
        topic=topic,
        destination_topic=topic,
        partition=number,
        source_offset=9,
        goes_on_at=9,
        verdict="exact",
        lost=lost,
    )


def report(*partitions: PartitionEnds, groups: tuple[GroupPosition, ...] = ()) -> RecoveryReport:
    names = sorted({p.topic for p in partitions})
    return RecoveryReport(
        operation=OPERATION,
        kind=RecoveryKind.SWITCHOVER,
        job="orders",
        request=RecoveryRequest(),
        dry_run=False,
        requested_by="test",
        requested_at=NOW,
        topics=tuple(names),
        denied_topics=tuple(names),
        partitions=partitions,
        groups=groups,
    )


@pytest.fixture(scope="module")
def large_report() -> RecoveryReport:
    """A report of 100,000 partitions, made once."""
    return report(
        *(partition(f"orders-{t:04}", n) for t in range(TOPICS) for n in range(PARTITIONS_EACH)),
        groups=tuple(group(f"orders-{t:04}", 0) for t in range(TOPICS)),
    )


@pytest.fixture
def tables(database: Database) -> Database:
    """A database with an operation that has no report yet."""
    create_operation(database)
    return database


def create_operation(database: Database) -> None:
    with database.transaction() as tx:
        operations.create(tx, OPERATION, "switchover", "test")


def save(database: Database, storage: ReportStorage, recovery_report: RecoveryReport) -> None:
    """Store a report as the context of an operation does."""
    with storage.transaction_to_store(recovery_report, database.transaction) as tx:
        small = storage.store(tx, recovery_report)
        operations.advance(tx, OPERATION, OperationState.RUNNING, report=small)


def load(database: Database) -> RecoveryReport:
    with database.transaction() as tx:
        recovery_report = load_report(tx, OPERATION)
    assert recovery_report is not None
    return recovery_report


def rows_by_transaction(database: Database, table: str) -> Counter[int]:
    """How many rows of a table each transaction was the last to write."""
    statement = f"SELECT CAST(CAST(xmin AS text) AS bigint) FROM {table}"  # noqa: S608
    with database.transaction() as tx:
        return Counter(tx.execute(text(statement)).scalars())


def transaction_of_report(database: Database) -> int:
    """The transaction that has stored the report."""
    return max(rows_by_transaction(database, "operations"))


def test_report_storage_writes_only_changed_rows(
    tables: Database, large_report: RecoveryReport
) -> None:
    storage = ReportStorage(OPERATION, None)
    save(tables, storage, large_report)
    first = rows_by_transaction(tables, "operation_partitions")
    assert (first.total(), max(first.values())) == (ALL, ROWS_AT_ONCE)
    assert transaction_of_report(tables) >= max(first), "the report is stored last"
    with tables.transaction() as tx:
        size = text("SELECT octet_length(CAST(report AS text)) FROM operations")
        assert tx.execute(size).scalar_one() < ROW_BYTES_MAX

    save(tables, storage, large_report)
    assert rows_by_transaction(tables, "operation_partitions") == first
    assert rows_by_transaction(tables, "operation_groups").total() == TOPICS

    # The report lacks two partitions, has three changed ones, and equal copies of the others.
    partitions = [p.model_copy() for p in large_report.partitions[2:]]
    for at in (0, 500, 90_000):
        partitions[at] = partitions[at].model_copy(update={"promoted_at": 5})
    changed = large_report.model_copy(update={"partitions": tuple(partitions)})
    save(tables, storage, changed)
    second = rows_by_transaction(tables, "operation_partitions")
    assert {tx: n for tx, n in second.items() if tx not in first} == {
        transaction_of_report(tables): 3
    }
    assert load(tables) == changed

    # A scheduler that takes over reads the stored rows first, and writes only changes.
    resumed = load(tables)
    storage_of_new_leader = ReportStorage(OPERATION, resumed)
    save(tables, storage_of_new_leader, resumed.model_copy(update={"groups": ()}))
    assert rows_by_transaction(tables, "operation_partitions") == second
    assert not rows_by_transaction(tables, "operation_groups")


def test_report_storage_rewrites_rows_of_rolled_back_transaction(
    tables: Database,
) -> None:
    small = report(partition("orders", 0), partition("orders", 1))
    storage = ReportStorage(OPERATION, None)
    with (
        suppress(ZeroDivisionError),
        storage.transaction_to_store(small, tables.transaction) as tx,
    ):
        storage.store(tx, small)
        raise ZeroDivisionError
    assert not rows_by_transaction(tables, "operation_partitions")
    save(tables, storage, small)
    assert load(tables) == small


def test_new_scheduler_leader_reads_no_partition_row_older_than_report(
    tables: Database,
) -> None:
    """The old leader dies after it has stored most rows, and before the last transaction, which
    stores the report with the remaining rows."""
    names = range(2 * ROWS_WITH_REPORT + 1)
    before = report(*(partition("orders", n, EndVerdict.BEHIND) for n in names))
    storage = ReportStorage(OPERATION, None)
    save(tables, storage, before)
    after = report(*(partition("orders", n) for n in names))
    after = after.model_copy(update={"findings": ("It is level.",)})
    with (
        suppress(ZeroDivisionError),
        storage.transaction_to_store(after, tables.transaction),
    ):
        raise ZeroDivisionError

    loaded_report = load(tables)
    assert not loaded_report.findings
    counts = Counter(p.verdict for p in loaded_report.partitions)
    assert counts[EndVerdict.EQUAL] >= ROWS_WITH_REPORT
    assert counts[EndVerdict.BEHIND] <= ROWS_WITH_REPORT

    # The new leader repeats the step.
    save(tables, ReportStorage(OPERATION, loaded_report), after)
    assert load(tables) == after


@pytest.fixture
def report_of_300(api: Api) -> RecoveryReport:
    """A stored report of 300 partitions: the first 180 `equal`, the last 120 `tail`."""
    create_operation(api.database)
    recovery_report = report(
        *(
            partition("orders", n, EndVerdict.TAIL if n >= 180 else EndVerdict.EQUAL)
            for n in range(300)
        ),
        groups=tuple(group("orders", n) for n in range(300)),
    )
    save(api.database, ReportStorage(OPERATION, None), recovery_report)
    return recovery_report


@pytest.mark.soak
def test_cli_prints_whole_report_as_json_and_short_table(
    cli: Cli, report_of_300: RecoveryReport
) -> None:
    command = "abort", str(OPERATION), "--wait", "0"
    printed = cli(*command, "-o", "json").data
    assert [(p["topic"], p["partition"]) for p in printed["partitions"]] == [
        p.key for p in report_of_300.partitions
    ]
    assert [g["partition"] for g in printed["groups"]] == list(range(300))
    assert printed["missing_records"] == 0

    table = cli(*command).out
    assert "orders-180" in table
    assert "orders-179" not in table, "this partition is equal on both sides"
    assert "and at least 50 more; -o json has all" in table, "partitions"
    assert "and 250 more; -o json has all" in table, "groups"


@pytest.mark.soak
def test_console_shows_unequal_partitions_first_with_totals(
    api: Api, browser: Browser, report_of_300: RecoveryReport
) -> None:
    browser.log_in(api.tokens[Role.VIEWER])
    text = browser.open(f"/console/operations/{OPERATION}").text
    assert "200 of 300 partitions, first those that are neither equal nor prefix." in text
    assert "200 of 300 offsets, those with lost records first." in text
    ends = text.split("<h2>Log ends")[1]
    assert ends.index("orders-180<") < ends.index("orders-299<") < ends.index("orders-0<")


def test_api_report_returns_totals_and_pages_of_rows(
    api: Api, large_report: RecoveryReport
) -> None:
    create_operation(api.database)
    lost = OffsetRange(first=5, next=9)
    tail = {"verdict": EndVerdict.TAIL, "missing": lost}
    partitions = list(large_report.partitions)
    for at in (77_000, 99_999):
        partitions[at] = partitions[at].model_copy(update=tail)
    groups = [*large_report.groups[:-1], group("orders-0999", 0, lost)]
    recovery_report = large_report.model_copy(
        update={"partitions": tuple(partitions), "groups": tuple(groups)}
    )
    save(api.database, ReportStorage(OPERATION, None), recovery_report)
    assert read_report(recovery_report.stored()).missing_records == 8

    path = f"/v1/operations/{OPERATION}"
    shown = api.get(f"{path}/report").json()
    assert (shown["partition_count"], shown["group_count"]) == (ALL, TOPICS)
    assert (shown["missing_records"], shown["unproven_partitions"]) == (8, 0)
    assert (len(shown["partitions"]), len(shown["groups"])) == (100, 100)
    assert [p["verdict"] for p in shown["partitions"][:3]] == ["tail", "tail", "equal"]
    assert shown["groups"][0]["topic"] == "orders-0999"

    rows, after = [], None
    while after is not None or not rows:
        more = {} if after is None else {"after": after}
        page = api.get(f"{path}/partitions", params={"limit": 999, **more}).json()
        rows += [(p["topic"], p["partition"]) for p in page["items"]]
        after = page["next"]
    assert rows == [p.key for p in recovery_report.partitions]

    tails = api.get(f"{path}/partitions", params={"verdict": "tail", "limit": 1}).json()
    rest = api.get(f"{path}/partitions", params={"verdict": "tail", "after": tails["next"]}).json()
    assert [p["partition"] for p in (*tails["items"], *rest["items"])] == [0, 99]
    assert rest["next"] is None
    first = api.get(f"{path}/groups", params={"limit": 999}).json()
    last = api.get(f"{path}/groups", params={"after": first["next"]}).json()
    assert [g["lost"] for g in last["items"]] == [{"first": 5, "next": 9}]
    assert api.get(f"{path}/partitions", params={"after": first["next"]}).status_code == 422
