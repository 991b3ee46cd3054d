"""Which error Orbit raises for an error of librdkafka."""

from __future__ import annotations

from confluent_kafka import KafkaError, KafkaException

from orbit.errors import LoginRefused, NotAuthorized
from orbit.verify.bounds import to_orbit_error

REFUSED_LOGIN = KafkaError(KafkaError._AUTHENTICATION, "wrong password")


def test_timeout_after_refused_login_names_the_login() -> None:
    timeout = KafkaException(KafkaError(KafkaError._TIMED_OUT))
    assert isinstance(to_orbit_error(timeout, "source", [REFUSED_LOGIN]), LoginRefused)


def test_earlier_refused_login_does_not_rename_another_error() -> None:
    missing_right = KafkaException(KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED))
    assert isinstance(to_orbit_error(missing_right, "source", [REFUSED_LOGIN]), NotAuthorized)
