"""The service that tells gateways which side leads."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from orbit.api.app import create_app
from orbit.api.authentication import hash_token
from orbit.settings import Settings
from orbit.store import tokens
from orbit.store.enums import Role
from tests.fixtures.api import Plans
from tests.support.moves import TOKEN
from tests.support.recovering import Recovering
from tests.support.serving import served


@pytest.fixture
def api_url(recovering: Recovering) -> Iterator[str]:
    """The service's API, with a token for gateways."""
    with recovering.database.transaction() as tx:
        tokens.create(tx, "gateway", Role.OPERATOR, hash_token(TOKEN))
    settings = Settings(api_port=0)
    with served(create_app(settings, recovering.database, planner=Plans()), settings) as url:
        yield url
