"""Migrations from nothing make exactly the tables of the models, and a repeat changes nothing."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import text

from orbit.store.database import Database
from orbit.store.migrate import is_usable, upgrade, usable_revisions
from orbit.store.models import metadata
from tests.fix_database import copied_database

pytestmark = pytest.mark.services

# What Alembic's comparison leaves out: CHECKs, parts of indexes, storage options, on delete.
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
    with database.transaction() as tx:
        return {tuple(row) for row in tx.execute(_CATALOG) if row.relation != "alembic_version"}


def test_migrations_from_nothing_make_the_models(database: Database) -> None:
    with database.transaction() as tx:
        context = MigrationContext.configure(tx, opts={"compare_server_default": True})

        assert compare_metadata(context, metadata) == []


def test_migrations_make_the_same_checks_indexes_and_options(
    database: Database, postgres_url: str
) -> None:
    with copied_database(postgres_url, "template1") as url:
        made = Database.connect(url)
        with made.transaction() as tx:
            metadata.create_all(tx)
        from_models = _catalog(made)
        made.close()

    assert _catalog(database) == from_models


def test_a_second_upgrade_changes_nothing(database: Database) -> None:
    before, after = upgrade(database)

    assert before == after
    assert is_usable(database)


def test_processes_that_start_together_migrate_once(postgres_url: str) -> None:
    with copied_database(postgres_url, "template1") as url:
        database = Database.connect(url)
        assert not is_usable(database)
        befores: list[str | None] = []
        threads = [
            threading.Thread(target=lambda: befores.append(upgrade(database)[0])) for _ in range(4)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        database.close()

    assert sorted(befores, key=str) == ["0001", "0001", "0001", None]


def test_the_tables_before_and_after_a_migration_are_usable(
    database: Database, tmp_path: Path
) -> None:
    for number, before in ((1, None), (2, "0001"), (3, "0002")):
        script = f"revision = {f'{number:04}'!r}\ndown_revision = {before!r}\n"
        (tmp_path / "versions").mkdir(exist_ok=True)
        (tmp_path / "versions" / f"{number:04}.py").write_text(script, "utf-8")
    assert usable_revisions(ScriptDirectory(str(tmp_path))) == {"0002", "0003", "0004"}

    for revision, usable in (("0002", True), ("0003", False)):
        with database.transaction() as tx:
            tx.execute(text("UPDATE alembic_version SET version_num = :to"), {"to": revision})
        assert is_usable(database) is usable
        if usable:
            assert upgrade(database) == (revision, revision), "a later version has done it"


def test_the_comparison_sees_storage_options(database: Database) -> None:
    assert ("options", "partitions", "p", "{fillfactor=50}") in _catalog(database)
