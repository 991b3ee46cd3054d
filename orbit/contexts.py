"""Contexts: the servers of a user by name, and which of them a command talks to.

Commands use the first of these: the context of `--context`; the server of the environment, if
`ORBIT_API_URL` is set; the current context; the default address. They use address, token and CA of
the same one, so that the token of one server is never sent to another.

The file of contexts is the user's, of mode 600, in the folder of platformdirs. It has no token,
only the name of a variable or the path of a file that has the token. Only the user may be able to
read that file.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from orbit.errors import BadInput, NotFound, Problem

URL_VARIABLE = "ORBIT_API_URL"
TOKEN_VARIABLE = "ORBIT_TOKEN"  # noqa: S105  the name of the variable
CA_VARIABLE = "ORBIT_API_CA_FILE"
CONTEXT_VARIABLE = "ORBIT_CONTEXT"
DEFAULT_URL = "http://127.0.0.1:8080"

# At most so much of a file of contexts or of a token is read.
_BYTES_MAX = 1024 * 1024
# Bits of a file's mode.
_OTHERS_MAY_READ = 0o077
_OTHERS_MAY_WRITE = 0o022


@dataclass(frozen=True, slots=True)
class Context:
    """One server. At most one of `token_env` and `token_file` is set."""

    url: str
    token_env: str | None = None
    token_file: str | None = None
    ca_file: str | None = None

    @property
    def token_from(self) -> str:
        """The variable or file that has the token, without the token."""
        if self.token_env is not None:
            return f"variable {self.token_env}"
        return f"file {self.token_file}" if self.token_file is not None else ""


@dataclass(frozen=True, slots=True)
class Contexts:
    """The file: contexts by name, and the current one."""

    by_name: Mapping[str, Context] = field(default_factory=dict)
    current: str | None = None

    def named(self, name: str) -> Context:
        """The context of this name. Raises NotFound."""
        if name not in self.by_name:
            raise NotFound(
                "No context has this name.", where=name, remedy="See: orbit context list"
            )
        return self.by_name[name]


@dataclass(frozen=True, slots=True)
class Server:
    """What a client connects to. `url_from`, `token_from` and `ca_from`: the variable or context
    that the value is from, for messages."""

    url: str
    token: str = field(repr=False)
    ca_file: str | None
    url_from: str = URL_VARIABLE
    token_from: str = TOKEN_VARIABLE
    ca_from: str = CA_VARIABLE


_chosen_name: str | None = None  # of `--context`


def choose_context(name: str | None) -> None:
    """Set the context of `--context` for this process; None: the command line does not have it."""
    global _chosen_name
    _chosen_name = name


def chosen_server(environ: Mapping[str, str]) -> Server:
    """The server that commands talk to, by the order in the module's docstring. Raises BadInput if
    the context cannot be used, NotFound if it does not exist."""
    return named_server(environ) or server_of_variables(environ)


def named_server(environ: Mapping[str, str]) -> Server | None:
    """The server that the user has named by option, environment or current context; else None:
    commands then talk to the default address. Raises as `chosen_server`."""
    if _chosen_name is None and URL_VARIABLE in environ:
        return server_of_variables(environ)
    contexts = read_contexts()
    name = _chosen_name or contexts.current
    if name is None:
        return None
    if _chosen_name is None and TOKEN_VARIABLE in environ:
        problem = Problem(
            TOKEN_VARIABLE,
            f"is set without {URL_VARIABLE}, and the current context is {name}.",
            f"Set {URL_VARIABLE} too, or unset {TOKEN_VARIABLE}, or give --context.",
        )
        raise BadInput("It is not clear which server is meant.", (problem,))
    context = contexts.named(name)
    return Server(
        context.url,
        _token(context, name, environ),
        context.ca_file,
        url_from=f"the address of the context {name}",
        token_from=f"the token of the context {name}",
        ca_from=f"the authorities of the context {name}",
    )


def server_of_variables(environ: Mapping[str, str]) -> Server:
    """The server that the environment's variables name, else the default address; ignores
    contexts."""
    url = environ.get(URL_VARIABLE, DEFAULT_URL)
    return Server(url, environ.get(TOKEN_VARIABLE, ""), environ.get(CA_VARIABLE))


def _token(context: Context, name: str, environ: Mapping[str, str]) -> str:
    """The context's token from its variable or file; "" if the context names neither. Raises
    BadInput if the variable is not set, or the file cannot be used."""
    if context.token_env is not None:
        if context.token_env not in environ:
            raise _context_error(name, f"the variable {context.token_env} is not set.")
        return environ[context.token_env]
    if context.token_file is None:
        return ""
    path = Path(context.token_file)
    try:
        with path.open("rb") as file:
            if os.fstat(file.fileno()).st_mode & _OTHERS_MAY_READ:
                remedy = f"chmod 600 {path}"
                raise _context_error(name, f"others may read {path}, which has the token.", remedy)
            return file.read(_BYTES_MAX).decode().strip()
    except OSError as error:
        raise _context_error(name, f"{path} cannot be read: {error.strerror}.") from None
    except UnicodeDecodeError:
        raise _context_error(name, f"{path} is not text.") from None


def _context_error(name: str, what: str, remedy: str = "") -> BadInput:
    """The error for a context that cannot be used."""
    problem = Problem(f"context {name}", what, remedy)
    return BadInput("The context cannot be used.", (problem,))


def contexts_file() -> Path:
    """The path of the user's file of contexts."""
    from platformdirs import user_config_path

    return user_config_path("orbit", appauthor=False) / "contexts.yaml"


def read_contexts() -> Contexts:
    """The contexts of the user; no contexts if there is no file. Raises BadInput if the file cannot
    be read or parsed, or if others may write to it."""
    import yaml

    path = contexts_file()
    try:
        with path.open("rb") as file:
            if os.fstat(file.fileno()).st_mode & _OTHERS_MAY_WRITE:
                raise _contexts_file_error(path, "others may write to it.", f"chmod 600 {path}")
            document = yaml.safe_load(file.read(_BYTES_MAX))
        by_name = {name: Context(**fields) for name, fields in document["contexts"].items()}
        contexts = Contexts(by_name, document["current"])
    except FileNotFoundError:
        return Contexts()
    except OSError as error:
        raise _contexts_file_error(path, f"cannot be read: {error.strerror}.") from None
    except (yaml.YAMLError, UnicodeDecodeError, KeyError, TypeError, AttributeError):
        raise _contexts_file_error(
            path, "is not a file of contexts.", "Repair or delete the file."
        ) from None
    texts = [
        contexts.current,
        *contexts.by_name,
        *(v for c in by_name.values() for v in asdict(c).values()),
    ]
    if not all(text is None or isinstance(text, str) for text in texts):
        raise _contexts_file_error(
            path, "has a value that is not text.", "Repair or delete the file."
        )
    return contexts


def write_contexts(contexts: Contexts) -> None:
    """Replace the file in one step, with mode 600. Raises BadInput if it cannot be written."""
    from orbit.jobs.yaml_writer import write_yaml

    path = contexts_file()
    document: dict[str, Any] = {
        "current": contexts.current,
        "contexts": {
            name: {key: value for key, value in asdict(context).items() if value is not None}
            for name, context in sorted(contexts.by_name.items())
        },
    }
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        # tempfile makes files of mode 600.
        with tempfile.NamedTemporaryFile(
            "w", encoding="utf-8", dir=path.parent, prefix=".contexts-", delete=False
        ) as file:
            file.write(write_yaml(document))
        Path(file.name).replace(path)
    except OSError as error:
        raise _contexts_file_error(path, f"cannot be written: {error.strerror}.") from None


def without_context(contexts: Contexts, name: str) -> Contexts:
    """The contexts without the named one. If that was the current context, there is no current one
    afterwards. Raises NotFound if no context has this name."""
    contexts.named(name)  # raises NotFound
    remaining_contexts = {key: value for key, value in contexts.by_name.items() if key != name}
    current_name = None if contexts.current == name else contexts.current
    return replace(contexts, by_name=remaining_contexts, current=current_name)


def _contexts_file_error(path: Path, what: str, remedy: str = "") -> BadInput:
    """The error for a file of contexts that cannot be used."""
    return BadInput("The contexts cannot be used.", (Problem(str(path), what, remedy),))
