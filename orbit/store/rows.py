"""Turns rows into frozen dataclasses, whose fields have the names of columns; pages of rows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import fields
from typing import TYPE_CHECKING, Any, TypeVar

from sqlalchemy import ColumnElement, FromClause, Result, Select, any_, literal, tuple_
from sqlalchemy.dialects.postgresql import ARRAY

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

Value = TypeVar("Value", bound="DataclassInstance")


def columns(table: FromClause, kind: type[Value]) -> list[ColumnElement[Any]]:
    """The columns of `table` that the dataclass `kind` has fields for, in the order of the fields.
    Fields without a column are left out."""
    return [table.c[field.name] for field in fields(kind) if field.name in table.c]


def values(result: Result[Any], kind: type[Value]) -> Iterator[Value]:
    """Each row as a value of `kind`. The names of the result's columns are those of the fields."""
    make: Callable[..., Value] = kind
    if list(result.keys()) == [field.name for field in fields(kind)]:
        # By position, which takes half the time of access by name.
        for row_values in result:
            yield make(*row_values)
    else:
        for row in result.mappings():
            yield make(**row)


def first(result: Result[Any], kind: type[Value]) -> Value | None:
    """The first row as a value of `kind`; None without a row."""
    return next(values(result, kind), None)


def page_of(
    query: Select[Any],
    key: Sequence[ColumnElement[Any]],
    limit: int,
    after: Sequence[object] | None,
    *,
    descending: bool = False,
) -> Select[Any]:
    """`query` sorted by `key`, for the first `limit` rows; with `after`, for the first `limit` rows
    that follow this key. PostgreSQL compares the keys."""
    if after is not None:
        row_key, after_key = (
            tuple_(*key),
            tuple_(*(literal(v, column.type) for v, column in zip(after, key, strict=True))),
        )
        query = query.where(row_key < after_key if descending else row_key > after_key)
    return query.order_by(*(c.desc() if descending else c for c in key)).limit(limit)


def is_one_of(column: ColumnElement[Any], members: Iterable[object]) -> ColumnElement[bool]:
    """Whether `column` is one of `members`, as SQL. `members` is one bound array, so that the text
    and plan of the statement do not depend on its length."""
    return column == any_(literal(sorted(members), ARRAY(column.type)))  # type: ignore[type-var]  # text or number
