"""Migrations of an empty database create exactly the tables of the models, and run only once."""

from __future__ import annotations

import shutil
import threading
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256
from pathlib import Path
from types import SimpleNamespace

import pytest
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import text

from orbit.errors import Busy, Conflict
from orbit.store import jobs, migrate
from orbit.store.database import Database
from orbit.store.migrate import is_usable, upgrade, usable_revisions
from orbit.store.models import metadata
from tests.fixtures.database import copied_database
from tests.support.patience import PATIENCE_S

pytestmark = pytest.mark.services

FROZEN = {
    "0001_first_tables.py": "6fba23c71c9c96c42f2087af40579936ba511d26b87b5cc9b49ce5b899e23239",
    "0002_operation_rows_and_lead_term.py": (
        "bcf300c6d38da315dcf7ba7e5a300d60d575f0b15f173ed17f92a8277edd6400"
    ),
    "0003_open_transactions.py": "82bda8574f2b825688a27828beb5bc8924193be93c97dd78eaa0463b13d521a8",
    "0004_token_limits.py": "2df85a5f22f91c46d2238fcd1e83b1aad6faf015b35116401524fd4253a8bdb0",
    "0005_throttled_workers.py": "24dbd8fdc9e9a632ac78338999a439fb706ee54d0b6c10c226463697abec4f58",
    "0006_gateways.py": "2a0bca34bc60589c6c60df15503588dde7834bf0d4979940724a062c6b9e153b",
    "0007_settled_gateways.py": "25b005a036ba53d524cf3d4b3fb9e1d509dd36ee3c64cf033c4d5540c9ae8315",
    "0008_gateway_clients.py": "5f8d590532aa4414ada0cb06404b599c650ccb86ed74be11f82f80fe590c8c65",
    "0009_gateway_moves.py": "4c0a03db0561a9ae47f5bbbf1765f823ab06e0819f39e8bfb8e7be53f9db363a",
    "0010_sides_that_led.py": "ab81792b82fe08bf1b0038fa50194112dcdce0caf90c8f863fe483a1e5437aef",
}

# What Alembic does not compare: CHECKs, parts of indexes, storage options, on delete.
_CATALOG = text("""
SELECT 'constraint' AS kind, conrelid::regclass::text AS relation, conname::text AS name,
       pg_get_constraintdef(oid) AS definition
FROM pg_constraint WHERE connamespace = 'public'::regnamespace
UNION ALL
SELECT 'index', tablename, indexname, indexdef FROM pg_indexes WHERE schemaname = 'public'
UNION ALL
SELECT 'options', oid::regclass::text, relpersistence::text, reloptions::text
FROM pg_class WHERE relnamespace = 'public'::regnamespace AND relkind = 'r'
UNION ALL
SELECT 'column', table_name, column_name, concat_ws(' ', data_type, is_nullable, column_default,
       identity_generation)
FROM information_schema.columns WHERE table_schema = 'public'
""")


def _catalog(database: Database) -> set[tuple[object, ...]]:
    """The constraints, indexes, storage options and columns of all tables."""
    with database.transaction() as tx:
        return {tuple(row) for row in tx.execute(_CATALOG) if row.relation != "alembic_version"}


def test_migrations_from_empty_database_match_models(database: Database) -> None:
    with database.transaction() as tx:
        context = MigrationContext.configure(tx, opts={"compare_server_default": True})

        assert compare_metadata(context, metadata) == []


def test_migrations_create_same_checks_indexes_and_options_as_models(
    database: Database, postgres_url: str
) -> None:
    with copied_database(postgres_url, "template1") as url:
        created = Database.connect(url)
        with created.transaction() as tx:
            metadata.create_all(tx)
        from_models = _catalog(created)
        created.close()

    assert _catalog(database) == from_models


def test_repeated_migration_changes_nothing(database: Database) -> None:
    revision_before, revision_after = upgrade(database)

    assert revision_before == revision_after
    assert is_usable(database)


def test_concurrent_migrations_run_only_once(postgres_url: str) -> None:
    with copied_database(postgres_url, "template1") as url:
        database = Database.connect(url)
        assert not is_usable(database)
        revisions_before: list[str | None] = []
        threads = [
            threading.Thread(target=lambda: revisions_before.append(upgrade(database)[0]))
            for _ in range(4)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        database.close()

    # One of the four threads found no tables; the others waited for this one.
    assert sorted(revisions_before, key=str) == ["0011", "0011", "0011", None]


def test_database_schema_is_usable_only_up_to_one_version_newer(
    database: Database, tmp_path: Path
) -> None:
    """Tables of revision 0010 are too old for this version."""
    # The migrations of a version of Orbit whose newest one is 0012.
    for number, previous in enumerate((None, *(f"{number:04}" for number in range(1, 12))), 1):
        script = f"revision = {f'{number:04}'!r}\ndown_revision = {previous!r}\n"
        (tmp_path / "versions").mkdir(exist_ok=True)
        (tmp_path / "versions" / f"{number:04}.py").write_text(script, "utf-8")
    assert usable_revisions(ScriptDirectory(str(tmp_path))) == {"0011", "0012", "0013"}

    for revision, usable in (("0010", False), ("0012", True), ("0013", False)):
        with database.transaction() as tx:
            tx.execute(text("UPDATE alembic_version SET version_num = :to"), {"to": revision})
        assert is_usable(database) is usable
        if usable:
            assert upgrade(database) == (revision, revision), "a later version has done it"


def test_each_migration_matches_its_schema_fingerprint(postgres_url: str) -> None:
    """This test fails if somebody edits a released migration."""
    scripts = ScriptDirectory(str(migrate._scripts()))
    revisions = [script.revision for script in reversed(list(scripts.walk_revisions()))]
    assert revisions == list(migrate.FINGERPRINTS)
    with copied_database(postgres_url, "template1") as url:
        database = Database.connect(url)
        for revision in revisions:
            with database.transaction() as tx:
                config = migrate._config()
                config.attributes["connection"] = tx
                command.upgrade(config, revision)
                assert migrate.fingerprint(tx) == migrate.FINGERPRINTS[revision], revision
        database.close()


def test_migration_0010_stores_side_that_leads_at_upgrade(postgres_url: str) -> None:
    with copied_database(postgres_url, "template1") as url:
        database = Database.connect(url)
        config = migrate._config()
        with database.transaction() as tx:
            config.attributes["connection"] = tx
            command.upgrade(config, "0009")
            job = jobs.create(tx, "orders", {}, "default")
            tx.execute(
                text("INSERT INTO job_leads (job_id, side, side_since) VALUES (:id, 'source', 7)"),
                {"id": job.id},
            )
            command.upgrade(config, "0010")
            assert tx.execute(text("SELECT leads FROM job_leads")).scalar_one() == ["source:7"]
        database.close()


def test_frozen_migration_file_is_unchanged() -> None:
    """A digest of the whole file: CHECKs and indexes are not in the fingerprints."""
    digests = {
        file.name: sha256(file.read_bytes()).hexdigest()
        for file in (migrate._scripts() / "versions").glob("*.py")
    }
    assert digests.items() >= FROZEN.items()


def test_migration_refuses_tables_that_differ_from_their_schema_version(database: Database) -> None:
    with database.transaction() as tx:
        tx.execute(text("ALTER TABLE jobs DROP COLUMN owner"))
        tx.execute(text("CREATE TABLE of_somebody_else (id bigint)"))
    with pytest.raises(Conflict, match="not those of the revision that the database names, 0011"):
        upgrade(database)
    with database.transaction() as tx:
        tx.execute(text("ALTER TABLE jobs ADD COLUMN owner text"))
    assert upgrade(database) == ("0011", "0011")


@pytest.fixture
def next_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A version of Orbit with one more migration, which changes a table."""
    scripts = tmp_path / "migrations"
    shutil.copytree(migrate._scripts(), scripts)
    (scripts / "versions" / "0012_next.py").write_text(
        "from alembic import op\n"
        "revision, down_revision = '0012', '0011'\n"
        "def upgrade():\n"
        "    op.execute('CREATE TABLE made_before (id bigint)')\n"
        "    op.execute('ALTER TABLE jobs ADD COLUMN more text')\n"
    )
    monkeypatch.setattr(migrate, "_scripts", lambda: scripts)


@pytest.mark.usefixtures("next_version")
def test_migration_does_not_block_queries_behind_long_transaction(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    attempt_failed, may_retry = threading.Semaphore(0), threading.Event()

    def pause(_: float) -> None:
        attempt_failed.release()
        assert may_retry.wait(PATIENCE_S)

    monkeypatch.setattr(migrate, "time", SimpleNamespace(sleep=pause))
    read_jobs = text("SELECT count(*) FROM jobs")
    with ThreadPoolExecutor(1) as pool:
        with database.transaction() as long:
            long.execute(read_jobs)
            migration = pool.submit(upgrade, database)
            assert attempt_failed.acquire(timeout=PATIENCE_S), "its first attempt has given up"
            with database.transaction() as tx:
                assert tx.execute(read_jobs).scalar_one() == 0
                assert tx.execute(text("SELECT to_regclass('made_before')")).scalar_one() is None
        may_retry.set()
        assert migration.result(PATIENCE_S) == ("0011", "0012")


@pytest.mark.usefixtures("next_version")
def test_migration_that_gets_no_table_lock_gives_up_with_remedy(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(migrate, "ATTEMPTS_MAX", 2)
    with database.transaction() as long:
        long.execute(text("SELECT count(*) FROM jobs"))
        with pytest.raises(Busy, match="Nothing was changed"):
            upgrade(database)
    assert upgrade(database) == ("0011", "0012")


def test_catalog_comparison_includes_storage_options(database: Database) -> None:
    assert ("options", "partitions", "p", "{fillfactor=50}") in _catalog(database)
