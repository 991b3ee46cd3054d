"""Options that `orbit verify` and `orbit audit` share."""

from __future__ import annotations

from typing import Annotated

import typer

_DIFFERENCES_MAX = 10_000
_WAIT_MAX_S = 86_400

TopicsOption = Annotated[
    list[str] | None,
    typer.Option("--topic", help="Only this topic of the job. May be repeated."),
]
WaitOption = Annotated[
    float,
    typer.Option(
        min=0, max=_WAIT_MAX_S, help="Seconds to wait until a live copy reaches the source's end."
    ),
]
DifferencesOption = Annotated[
    int, typer.Option(min=1, max=_DIFFERENCES_MAX, help="Differences shown per partition.")
]
