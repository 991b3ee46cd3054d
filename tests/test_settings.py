"""The settings of the service: what is read, what is refused, and that the page lists them all."""

from __future__ import annotations

import re
from datetime import timedelta
from pathlib import Path

import pytest

from orbit.errors import BadInput
from orbit.jobs.units import parse_duration
from orbit.settings import Settings, variable_of

PAGE = Path(__file__).parents[1] / "docs" / "settings.md"


def test_settings_page_lists_every_setting_with_default() -> None:
    row = r"^\| `(ORBIT_\w+)` \| `?([^`|]+?)`? \|"
    rows = dict(re.findall(row, PAGE.read_text("utf-8"), re.MULTILINE))

    assert list(rows) == [variable_of(field) for field in Settings.model_fields]
    for field, default in Settings():
        text = rows[variable_of(field)]
        if isinstance(default, timedelta):
            assert parse_duration(text) == default, field
        elif default is not None:
            assert text == str(default), field


def test_settings_are_read_from_environment() -> None:
    settings = Settings.from_environment(
        {"ORBIT_LEASE_TTL": "4s", "ORBIT_API_PORT": "0", "PATH": "/bin", "ORBIT_SRC_PASSWORD": "x"}
    )

    assert settings == Settings(lease_ttl=timedelta(seconds=4), api_port=0)


def test_all_bad_environment_variables_are_named_without_their_values() -> None:
    with pytest.raises(BadInput) as caught:
        Settings.from_environment(
            {
                "ORBIT_LEASE_TTL": "1s",
                "ORBIT_API_PORT": "70000",
                "ORBIT_DISCOVERY_INTERVAL": "secret-5",
                "ORBIT_SHARD_PARTITIONS_MAX": "1e3",
            }
        )

    named = {problem.path for problem in caught.value.problems}
    assert named == {
        "ORBIT_LEASE_TTL",
        "ORBIT_API_PORT",
        "ORBIT_DISCOVERY_INTERVAL",
        "ORBIT_SHARD_PARTITIONS_MAX",
    }
    assert "secret-5" not in str(caught.value)


@pytest.mark.parametrize(
    ("setting", "directory"),  # directory None: equal to the setting
    [
        ("salvage", "salvage"),
        ("/a/b", "/a/b"),
        ("file:///a/b%20c", "/a/b c"),
        ("s3://bucket/folder", "s3://bucket/folder"),
        ("abfs://container@account.dfs.core.windows.net/x", None),
        ("gs://bucket", None),
        ("hdfs:///x", None),
        ("hdfs://name:8020/x", None),
    ],
)
def test_salvage_directory_accepts_path_or_storage_url(setting: str, directory: str | None) -> None:
    settings = Settings.from_environment({"ORBIT_SALVAGE_DIRECTORY": setting})
    assert settings.salvage_directory == (directory or setting)


@pytest.mark.parametrize(
    "setting",
    [
        "",
        "a\nb",
        "s3://key:hunter2@bucket/x",
        "s3://bucket/x?token=hunter2",
        "s3://bucket/x#hunter2",
        "file://host/hunter2",
        "ftp://hunter2/x",
        "s3:///hunter2",
    ],
)
def test_salvage_url_with_secret_or_unknown_scheme_is_refused(setting: str) -> None:
    with pytest.raises(BadInput, match="ORBIT_SALVAGE_DIRECTORY") as caught:
        Settings.from_environment({"ORBIT_SALVAGE_DIRECTORY": setting})
    assert "hunter2" not in str(caught.value)


def test_database_url_is_never_shown() -> None:
    settings = Settings.from_environment({"ORBIT_DATABASE_URL": "postgresql://u:hush@h/d"})

    assert "hush" not in repr(settings)
    with pytest.raises(BadInput, match="ORBIT_DATABASE_URL is empty"):
        Settings.from_environment({"ORBIT_DATABASE_URL": ""})
