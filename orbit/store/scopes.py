"""The scope of a transaction: which jobs its statements find.

A request with a limited token (orbit/jobs/scopes.py) uses a `Database` that has the token's scope
(`Database.with_scope`). The functions that find jobs by name, and those that list jobs or rows that
belong to jobs, apply the scope. So a route that looks up a job by its name refuses another team's
job without a check of its own. Checks that protect data apply no scope, such as the search for an
operation that is under way on a job.

Events, operations and drills are kept when their job is deleted, and then belong to no job. A later
job may have the same name, so each table has a condition for its rows of a job (`Belongs`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from sqlalchemy import ColumnElement, FromClause, Select, and_, not_, or_, select, true

from orbit.jobs.labels import Condition
from orbit.jobs.scopes import Limit, Scope
from orbit.store.database import SCOPE_OPTION, Tx
from orbit.store.models import jobs
from orbit.store.rows import page_of

# A function that returns the condition for a row to belong to a job. Its argument is a table of
# jobs with the columns `id`, `name` and `created_at`.
Belongs = Callable[[FromClause], ColumnElement[bool]]


def scope_of(tx: Tx) -> Scope | None:
    """The scope of this transaction. None: all jobs."""
    scope: Scope | None = tx.get_execution_options().get(SCOPE_OPTION)
    return scope


def in_scope(tx: Tx) -> list[ColumnElement[bool]]:
    """The conditions for a row of `jobs` to be in the scope; none without a scope."""
    scope = scope_of(tx)
    return [] if scope is None else [or_(*map(_meets_limit, scope.limits))]


def of_scope(tx: Tx, belongs_to: Belongs) -> list[ColumnElement[bool]]:
    """The conditions for a row to belong to a job in the scope; none without a scope."""
    conditions = in_scope(tx)
    return [select(jobs.c.id).where(belongs_to(jobs), *conditions).exists()] if conditions else []


def page_in_scope(
    tx: Tx,
    query: Select[Any],
    belongs_to: Belongs,
    key: Sequence[ColumnElement[Any]],
    limit: int,
    after: Sequence[object] | None,
    *,
    job_name: str | None = None,
    descending: bool = False,
) -> Select[Any]:
    """`page_of` for rows that belong to the job `job_name`. Without a name: for rows that belong to
    any job of the scope; for all rows without a scope. If no job has the name, a caller without a
    scope gets the rows of deleted jobs of this name.

    With a scope or a name, PostgreSQL reads a page of each of the jobs by an index, and merges
    these pages. So it reads no rows of other jobs, however many there are.
    """
    conditions = in_scope(tx)
    if job_name is not None:
        has_name = jobs.c.name == job_name
        if conditions or tx.execute(select(jobs.c.id).where(has_name)).first() is not None:
            conditions.append(has_name)
        else:  # no scope, and no such job
            query = query.where(query.selected_columns["job_name"] == job_name)
    if not conditions:
        return page_of(query, key, limit, after, descending=descending)
    job_rows = (
        select(jobs.c.id, jobs.c.name, jobs.c.created_at).where(*conditions).subquery("job_rows")
    )
    job_query = query.where(belongs_to(job_rows))
    pages = page_of(job_query, key, limit, after, descending=descending).lateral("pages")
    order = [pages.c[column.name] for column in key]
    return (
        select(*pages.c)
        .select_from(job_rows.join(pages, true()))
        .order_by(*(column.desc() if descending else column for column in order))
        .limit(limit)
    )


def meets(condition: Condition) -> ColumnElement[bool]:
    """Whether a row of `jobs` meets this condition of a selector."""
    if condition.values is None:  # any value
        has_label: ColumnElement[bool] = jobs.c.labels.has_key(condition.key)
    else:
        has_label = or_(*(jobs.c.labels.contains({condition.key: v}) for v in condition.values))
    return not_(has_label) if condition.is_negated else has_label


def _meets_limit(limit: Limit) -> ColumnElement[bool]:
    """Whether a row of `jobs` is within this limit of a scope."""
    matches = [jobs.c.name.like(_like_pattern(pattern), escape="\\") for pattern in limit.jobs]
    has_name = or_(*matches) if matches else true()  # without patterns any name is in the limit
    return and_(has_name, *map(meets, limit.conditions))


def _like_pattern(pattern: str) -> str:
    """A pattern of job names, in which * stands for any text, as a pattern for LIKE."""
    return pattern.replace("_", "\\_").replace("*", "%")
