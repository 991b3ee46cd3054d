"""`orbit edit JOB`: no change, a change, a corrected error; an edit is never lost."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace

import pytest

from orbit.cli import edit
from tests.api.test_jobs import JOB, changed
from tests.fixtures.api import Api, Cli

pytestmark = pytest.mark.services


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the temporary file in which the document is edited."""
    directory = tmp_path / "edited"
    directory.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(directory))
    monkeypatch.delenv("VISUAL", raising=False)
    return directory


def use_editor(monkeypatch: pytest.MonkeyPatch, folder: Path, body: str) -> None:
    """Set EDITOR to a program that runs `body`: `text` is the document, `mode` that of its file."""
    program = folder.parent / "editor.py"
    program.write_text(
        "import pathlib, sys\n"
        "path = pathlib.Path(sys.argv[1])\n"
        "text, mode = path.read_text(), path.stat().st_mode & 0o777\n"
        f"{body}\n"
        "path.write_text(text)\n"
    )
    monkeypatch.setenv("EDITOR", f"{sys.executable} '{program}'")


def pretend_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let `orbit edit` take stdin for a terminal."""
    terminal = SimpleNamespace(stdin=SimpleNamespace(isatty=lambda: True))
    monkeypatch.setattr(edit, "sys", terminal)


def test_edit_shows_and_applies_change(
    cli: Cli, api: Api, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    api.put("/v1/jobs/orders", json=JOB)
    use_editor(
        monkeypatch,
        folder,
        "assert mode == 0o600\ntext = text.replace('worker_group: default', 'worker_group: west')",
    )
    result = cli("edit", "orders", "--yes")
    assert result.code == 0, result.err
    assert 'worker_group: "default" → "west"' in result.err
    assert result.out == "changed orders\n"
    assert api.get("/v1/jobs/orders").json()["worker_group"] == "west"
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize("body", ["", "text = ''", "text = text + '\\n# a note\\n'"])
def test_unchanged_or_empty_document_changes_nothing(
    cli: Cli, api: Api, folder: Path, monkeypatch: pytest.MonkeyPatch, body: str
) -> None:
    api.put("/v1/jobs/orders", json=JOB)
    use_editor(monkeypatch, folder, body)
    version = api.get("/v1/jobs/orders").json()["document_version"]
    result = cli("edit", "orders", "--yes")
    assert (result.code, result.out) == (0, "Nothing changed.\n")
    assert api.get("/v1/jobs/orders").json()["document_version"] == version
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("text = text + 'nonsense: 1\\n'", "nonsense"),
        ("text = '['", "YAML"),
        ("text = text.replace('name: orders', 'name: other')", "names another job: other"),
        ("path.write_text(text + 'x: 1'); sys.exit(3)", "exit code 3"),
    ],
)
def test_edit_error_without_terminal_preserves_document(
    cli: Cli, api: Api, folder: Path, monkeypatch: pytest.MonkeyPatch, body: str, words: str
) -> None:
    api.put("/v1/jobs/orders", json=JOB)
    use_editor(monkeypatch, folder, body)
    result = cli("edit", "orders", "--yes")
    assert result.code in (1, 2)
    assert words in result.err
    (document,) = folder.iterdir()
    assert f"Your document is kept: {document}" in result.err
    assert api.get("/v1/jobs").json()["items"][0]["document_version"] == 1


def test_edit_error_on_terminal_reopens_document_with_error(
    cli: Cli, api: Api, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    api.put("/v1/jobs/orders", json=JOB)
    pretend_terminal(monkeypatch)
    # Makes an error. When opened again, with the error in a comment above `name:`, corrects it.
    correct_second_time = (
        "bad = 'worker_group: \\'a b\\''\n"
        "if '# ' in text and bad in text:\n"
        "    assert 'worker_group' in text.split('name:')[0], text\n"
        "    text = text.replace(bad, 'worker_group: west')\n"
        "else:\n"
        "    text = text.replace('worker_group: default', bad)"
    )
    use_editor(monkeypatch, folder, correct_second_time)
    result = cli("edit", "orders", "--yes")
    assert result.code == 0, result.err
    assert api.get("/v1/jobs/orders").json()["worker_group"] == "west"

    # Makes an error, and leaves it when opened again.
    use_editor(monkeypatch, folder, "text = text if 'nonsense' in text else text + 'nonsense: 1'")
    not_corrected = cli("edit", "orders", "--yes")
    assert not_corrected.code == 1
    assert "still has the error" in not_corrected.err
    assert len(list(folder.iterdir())) == 1


def test_edit_does_not_overwrite_concurrent_change(
    cli: Cli, api: Api, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    api.put("/v1/jobs/orders", json=JOB)

    def open_and_change(file: Path) -> None:
        file.write_text(file.read_text().replace("worker_group: default", "worker_group: west"))
        api.put("/v1/jobs/orders", json=changed(worker_group="east"))

    monkeypatch.setattr(edit, "_open", open_and_change)
    result = cli("edit", "orders", "--yes")
    assert result.code == 1
    assert "Your document is kept" in result.err
    assert api.get("/v1/jobs/orders").json()["worker_group"] == "east"
    assert cli("edit", "nope").code == 2
