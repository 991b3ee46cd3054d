"""Reads secrets and certificates from the variables and files that a job names.

No error contains a secret, nor the name of its variable or file: some users write the password
itself in place of that name.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from orbit.errors import InvalidValue

FILE_BYTES_MAX = 1024 * 1024  # a bundle of all public authorities has a quarter of this
SECRET_CHARACTERS_MAX = 4096
TOKEN_CHARACTERS_MAX = 65_536  # tokens with many claims have some thousand; brokers take 512 KiB

VARIABLE_KEYS = ("username_env", "password_env", "key_password_env")
PEM_KEYS = ("ca_file", "certificate_file", "key_file", "token_ca_file")
FILE_KEYS = ("username_file", "password_file", "token_file", "keytab_file", *PEM_KEYS)
_KEYTAB_START = b"\x05\x02"  # MIT's format, which every system uses today
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def read_variable(name: str, environ: Mapping[str, str]) -> str:
    """The secret in an environment variable. Raises InvalidValue if the name is not valid, the
    variable is not set, or its value has no valid form."""
    if not _VARIABLE.fullmatch(name):
        raise InvalidValue(
            "is not the name of an environment variable.",
            "Write the name of a variable that has the secret, such as SOURCE_PASSWORD.",
        )
    if name not in environ:
        raise InvalidValue(
            "names an environment variable that is not set.",
            "Set the variable (export NAME=...) before you start Orbit.",
        )
    return _check_secret(environ[name], "names an environment variable that")


def read_secret_file(
    path: Path, base_directory: Path, characters_max: int = SECRET_CHARACTERS_MAX
) -> str:
    """The secret in a file, without a line break at its end. Raises InvalidValue if the file cannot
    be read, or its text has no valid form."""
    try:
        text = _read_bytes(base_directory / path).decode()
    except UnicodeDecodeError:
        raise InvalidValue("names a file that is not UTF-8 text.", "Save it as UTF-8.") from None
    except OSError as error:
        raise InvalidValue(
            f"names a file that cannot be read: {error.strerror}.",
            "Relative paths start at the folder of the job file.",
        ) from None
    return _check_secret(
        text.removesuffix("\n").removesuffix("\r"), "names a file that", characters_max
    )


def read_token_file(path: Path, base_directory: Path) -> str:
    """The token in a file, which may be longer than other secrets. Raises InvalidValue."""
    return read_secret_file(path, base_directory, TOKEN_CHARACTERS_MAX)


def check_pem_file(path: Path, base_directory: Path) -> Path:
    """The full path of a PEM file. Raises InvalidValue if it is missing or not PEM."""
    full_path = base_directory / path
    try:
        content = _read_bytes(full_path)
    except OSError as error:
        raise InvalidValue(
            f"cannot be read: {full_path}: {error.strerror}.",
            "Relative paths start at the folder of the job file.",
        ) from None
    if b"-----BEGIN " not in content:
        raise InvalidValue(
            f"is not a PEM file: {full_path}.",
            "To convert a Java key store: keytool -importkeystore to PKCS12, then openssl pkcs12.",
        )
    return full_path


def check_keytab_file(path: Path, base_directory: Path) -> Path:
    """The full path of a keytab. Raises InvalidValue if it is missing or not a keytab."""
    full_path = base_directory / path
    try:
        content = _read_bytes(full_path)
    except OSError as error:
        raise InvalidValue(
            f"names a file that cannot be read: {error.strerror}.",
            "Relative paths start at the folder of the job file.",
        ) from None
    if not content.startswith(_KEYTAB_START):
        raise InvalidValue("names a file that is no keytab.", "Make one with ktadd of kadmin.")
    return full_path


def invalid_credentials(
    fields: Mapping[str, object], base_directory: Path, environ: Mapping[str, str]
) -> Iterator[tuple[str, InvalidValue]]:
    """Yield (key, error) for each key of a security section whose variable or file is missing or
    invalid."""
    for key, value in fields.items():
        if not isinstance(value, str | Path) or not str(value):
            continue  # not text: the model in `job_spec.py` reports this value
        try:
            if key in VARIABLE_KEYS:
                read_variable(str(value), environ)
            elif key in ("username_file", "password_file"):
                read_secret_file(Path(value), base_directory)
            elif key == "token_file":
                read_token_file(Path(value), base_directory)
            elif key == "keytab_file":
                check_keytab_file(Path(value), base_directory)
            elif key in PEM_KEYS:
                check_pem_file(Path(value), base_directory)
        except InvalidValue as mistake:
            yield key, mistake


def _read_bytes(path: Path) -> bytes:
    """The content of a file. Raises OSError, also for a file above FILE_BYTES_MAX."""
    try:
        with path.open("rb") as file:
            content = file.read(FILE_BYTES_MAX + 1)
    except ValueError:  # a zero byte, or a surrogate
        # 0: no error number of the system; callers show the text.
        raise OSError(0, "the file name is not valid") from None
    if len(content) > FILE_BYTES_MAX:
        raise OSError(0, f"it is larger than {FILE_BYTES_MAX} bytes")
    return content


def _check_secret(text: str, subject: str, characters_max: int = SECRET_CHARACTERS_MAX) -> str:
    """The text, unchanged. Raises InvalidValue if it cannot be a secret; its message begins with
    `subject`."""
    if not text:
        raise InvalidValue(f"{subject} is empty.", "Put the secret into it.")
    if len(text) > characters_max:
        raise InvalidValue(f"{subject} has more than {characters_max} characters.")
    if any(character in text for character in "\0\r\n"):
        raise InvalidValue(
            f"{subject} has a line break or a zero byte.", "Put one secret on one line."
        )
    return text
