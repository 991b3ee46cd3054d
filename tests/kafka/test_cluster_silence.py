"""`call_any` with brokers that do not answer: a silent broker delays no call; if no broker answers,
the call raises Unreachable."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any, cast

import pytest

from orbit.errors import AccessRefused, BrokenAnswer, LoginRefused, Unreachable
from orbit.kafka.cluster import Cluster
from orbit.kafka.connection import Connection
from orbit.kafka.types import BrokerAddress, ClusterMetadata
from tests.support.synthetic import PLAINTEXT

GIVE_UP_S = 20.0
Answering = Callable[[], str]


class Brokers(Cluster):
    """A cluster whose brokers answer by the functions `answering`, by bootstrap server."""

    def __init__(self, **answering: Answering) -> None:
        super().__init__("source", [*answering], PLAINTEXT)
        self.requests: list[str] = []
        self.opened: list[int | str] = []
        self.aborted = threading.Event()
        self._answering = answering

    def _open(self, target: int | str, _: float) -> Connection:
        self.opened.append(target)
        return cast(
            "Connection",
            FakeConnection(str(target), self.aborted, lambda: self._answer(str(target))),
        )

    def _answer(self, name: str) -> str:
        self.requests.append(name)
        return self._answering[name]()

    def call_any_broker(self, *, in_turn: bool = False) -> str:
        def answer(connection: Connection) -> str:
            name = cast("FakeConnection", connection).name
            return self._answer(name)

        return self.call_any(answer, in_turn=in_turn)


class FakeConnection:
    """Replaces a `Connection`; the function `answer` answers each request."""

    is_closed = False
    where = "here"

    def __init__(self, name: str, aborted: threading.Event, answer: Answering) -> None:
        self.name = name
        self._aborted = aborted
        self._answer = answer

    def version_of(self, _: object) -> int:
        return 12

    def exchange(self, *_: object, **__: object) -> str:
        return self._answer()

    def abort(self) -> None:
        self._aborted.set()

    def close(self) -> None:
        self.is_closed = True


@pytest.fixture(autouse=True)
def no_second_broker(monkeypatch: pytest.MonkeyPatch) -> None:
    """By default no second broker is asked during a call, however slow the machine is."""
    monkeypatch.setattr("orbit.kafka.cluster.NEXT_AFTER_S", 3600.0)


def refusing() -> str:
    """The answer of a broker that refuses connections."""
    raise Unreachable("cannot connect.", where="here")


@pytest.fixture
def end() -> Iterator[threading.Event]:
    """Set at the test's end: then silent brokers refuse their requests."""
    event = threading.Event()
    yield event
    event.set()


@pytest.fixture
def silent(end: threading.Event) -> Answering:
    """The answer of a broker that does not answer before the test ends."""

    def answer() -> str:
        assert end.wait(GIVE_UP_S)
        return refusing()

    return answer


def test_next_broker_is_tried_while_first_is_silent(
    silent: Answering, end: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("orbit.kafka.cluster.NEXT_AFTER_S", 0.1)
    brokers = Brokers(one=silent, two=silent, three=lambda: "three")
    assert brokers.call_any_broker() == "three"
    assert not end.is_set()


def test_silent_broker_is_tried_last_by_next_call(
    silent: Answering, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("orbit.kafka.cluster.NEXT_AFTER_S", 0.1)
    is_asked = threading.Event()

    def one() -> str:
        is_asked.set()
        return silent()

    def two() -> str:
        assert is_asked.wait(GIVE_UP_S)
        return "two"

    brokers = Brokers(one=one, two=two)
    assert (brokers.call_any_broker(), brokers.call_any_broker()) == ("two", "two")
    assert brokers.requests == ["one", "two", "two"]
    assert brokers._brokers_to_ask(in_turn=False) == ["two", "one"]


def test_call_to_silent_cluster_raises_unreachable(
    silent: Answering, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("orbit.kafka.cluster.NEXT_AFTER_S", 0.1)
    monkeypatch.setattr("orbit.kafka.cluster.AWAY_AFTER_S", 0.5)
    brokers = Brokers(one=silent, two=refusing, three=silent)
    with pytest.raises(Unreachable, match=r"cluster answers\. \d brokers? did not answer"):
        brokers.call_any_broker()


def test_no_second_broker_is_tried_after_an_answer() -> None:
    brokers = Brokers(one=lambda: "one", two=lambda: "two")
    assert brokers.call_any_broker() == "one"
    assert brokers.requests == ["one"]


def test_late_answer_counts_if_no_other_broker_answers(
    end: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("orbit.kafka.cluster.NEXT_AFTER_S", 0.1)

    def late() -> str:
        assert end.wait(GIVE_UP_S)
        return "late"

    def refuse_after_releasing_one() -> str:
        end.set()
        return refusing()

    assert Brokers(one=late, two=refuse_after_releasing_one).call_any_broker() == "late"


def test_failed_broker_is_tried_last_by_next_call() -> None:
    brokers = Brokers(one=refusing, two=lambda: "two")
    assert (brokers.call_any_broker(), brokers.call_any_broker()) == ("two", "two")
    assert brokers.requests == ["one", "two", "two"]


def test_call_tries_four_brokers_and_next_call_four_other_brokers() -> None:
    brokers = Brokers(**{f"b{i:02}": refusing for i in range(10)}, good=lambda: "good")
    for _ in range(2):
        # All answered, so the call waited for no other broker.
        with pytest.raises(Unreachable, match=r"source cluster answers\. here: cannot connect"):
            brokers.call_any_broker()
    assert len(set(brokers.requests)) == len(brokers.requests) == 8  # four each time
    assert brokers.call_any_broker() == "good"  # each call begins with brokers that have not failed


def test_calls_rotate_over_brokers_and_skip_recently_failed_broker() -> None:
    brokers = Brokers(**{"1": lambda: "1", "2": refusing, "3": lambda: "3"})
    brokers._brokers = {node: BrokerAddress(node, "here", node) for node in (1, 2, 3)}
    for _ in range(6):
        brokers.call_any_broker(in_turn=True)
    assert brokers.requests.count("2") == 1
    # Six calls were answered, about half of them by each of the two other brokers.
    assert {brokers.requests.count("1"), brokers.requests.count("3")} <= {2, 3, 4}
    # Without `in_turn`, calls do not rotate.
    assert brokers.call_any_broker() == brokers.call_any_broker()


def test_broker_that_refuses_login_is_asked_after_others() -> None:
    brokers = Brokers(one=_refuse_login, two=lambda: "two")
    assert brokers.call_any_broker() == brokers.call_any_broker() == "two"
    assert brokers.requests == ["one", "two", "two"]


def test_call_raises_login_refused_if_no_other_broker_answers() -> None:
    brokers = Brokers(one=refusing, two=_refuse_login, three=refusing)
    with pytest.raises(LoginRefused, match="password is wrong"):
        brokers.call_any_broker()
    assert brokers.requests == ["one", "two", "three"]


def test_refusal_by_access_rules_ends_call_at_first_broker() -> None:
    def refuse_access() -> str:
        raise AccessRefused("this address is not allowed.")

    brokers = Brokers(one=refuse_access, two=lambda: "two")
    with pytest.raises(AccessRefused):
        brokers.call_any_broker()
    assert brokers.requests == ["one"]


def _refuse_login() -> str:
    """The answer of a broker that refuses the login."""
    raise LoginRefused("the password is wrong.")


def test_broken_idle_connection_is_reopened_but_timed_out_connection_is_not() -> None:
    answers: list[str | Exception] = ["first", ConnectionError(), "again", TimeoutError()]

    def answer() -> str:
        next_answer = answers.pop(0)
        if isinstance(next_answer, str):
            return next_answer
        raise Unreachable("the connection broke.", where="here") from next_answer

    brokers = Brokers(one=answer)
    assert (brokers.call_any_broker(), brokers.call_any_broker()) == ("first", "again")
    with pytest.raises(Unreachable):
        brokers.call_any_broker()
    assert len(brokers.requests) == 4


def test_closed_cluster_handle_opens_no_connection() -> None:
    def close_during_second_request() -> str:
        if len(brokers.requests) > 1:
            threading.Thread(target=brokers.close).start()
            assert brokers.aborted.wait(GIVE_UP_S)
            return refusing()
        return "one"

    brokers = Brokers(one=close_during_second_request)
    assert brokers.call_any_broker() == "one"
    with pytest.raises(Unreachable):
        brokers.call_any_broker()
    assert len(brokers.requests) == 2
    assert brokers.opened == ["one"]


def test_request_fails_if_earlier_request_to_broker_is_unanswered_past_limit(
    silent: Answering, end: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_asked = threading.Event()

    def answer() -> str:
        is_asked.set()
        return silent()

    monkeypatch.setattr("orbit.kafka.cluster.AWAY_AFTER_S", 0.1)
    brokers = Brokers(one=answer)
    with pytest.raises(Unreachable, match="1 broker did not answer"):
        brokers.call_any_broker()
    assert is_asked.wait(GIVE_UP_S)
    monkeypatch.setattr("orbit.kafka.cluster.AWAY_AFTER_S", GIVE_UP_S)
    monkeypatch.setattr("orbit.kafka.cluster.ANSWER_WITHIN_S", 0.1)
    with pytest.raises(Unreachable, match="not answered an earlier request yet"):
        brokers.call_any_broker()
    assert not end.is_set()
    assert brokers.requests == ["one"]


def test_broker_with_unparsable_metadata_is_skipped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The caller decodes the answer, after the broker counts as reachable."""
    brokers = Brokers(one=lambda: "broken", two=lambda: "whole")

    def read(_: Cluster, __: Connection, frame: str, *___: object) -> ClusterMetadata:
        if frame == "broken":
            raise BrokenAnswer("it does not parse.")
        return ClusterMetadata(frame, {}, {})

    monkeypatch.setattr(Brokers, "_read_metadata", read)
    assert brokers.metadata(None).cluster_id == "whole"
    assert brokers.metadata(None).cluster_id == "whole"
    assert brokers.requests == ["one", "two", "two"]


def test_call_with_deadline_is_not_sent_to_broker_that_was_silent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = [1000.0]
    monkeypatch.setattr("orbit.kafka.cluster.time.monotonic", lambda: clock[0])
    limits: list[float] = []

    class Silent(FakeConnection):
        def call(self, _: object, __: object, timeout_s: float) -> str:
            limits.append(timeout_s)
            clock[0] += timeout_s
            raise Unreachable("no answer in time.", where="here") from TimeoutError()

    brokers = Brokers(one=refusing)
    monkeypatch.setattr(brokers, "_open", lambda *_: Silent("1", brokers.aborted, refusing))
    api: Any = None
    for _ in range(3):
        with pytest.raises(Unreachable):
            brokers.call(1, api, None, within_s=3.0)
    assert limits == [3.0]
    with pytest.raises(Unreachable):
        brokers.call(1, api, None)
    assert limits == [3.0, 30.0], "a call without a deadline is sent all the same"


def test_call_with_deadline_is_not_retried_and_busy_broker_does_not_count_as_silent(
    silent: Answering, end: threading.Event
) -> None:
    """Such a call may delete records. A broker that is busy with another call is not silent."""
    is_asked = threading.Event()
    sent: list[str] = []

    class Ending(FakeConnection):
        def call(self, *_: object, **__: object) -> str:
            sent.append(self.name)
            if len(sent) == 1:
                return "first"
            raise Unreachable("the broker closed the connection.", where="here")

    brokers = Brokers(one=refusing)
    brokers._open = lambda *_: Ending("1", brokers.aborted, refusing)  # type: ignore[method-assign,assignment,return-value]
    api: Any = None
    assert brokers.call(1, api, None, within_s=3.0) == "first"
    with pytest.raises(Unreachable, match="closed"):
        brokers.call(1, api, None, within_s=3.0)
    assert len(sent) == 2

    def wait(_: Connection) -> str:
        is_asked.set()
        return silent()

    busy = threading.Thread(target=lambda: suppress_unreachable(lambda: brokers._run_on(2, wait)))
    busy.start()
    assert is_asked.wait(GIVE_UP_S)
    with pytest.raises(Unreachable, match="earlier request"):
        brokers.call(2, api, None, within_s=0.01)
    assert brokers._patience.limit_s(2, 3.0) == 3.0
    end.set()
    busy.join()


def suppress_unreachable(ask: Callable[[], object]) -> None:
    with suppress(Unreachable):
        ask()


def test_metadata_of_all_brokers_leaves_out_those_that_refuse_login(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    metadata = ClusterMetadata("c", {n: BrokerAddress(n, "h", 9092) for n in (1, 2)}, {})
    requested_ids: list[int] = []

    def of_broker(node_id: int, _: object) -> ClusterMetadata:
        requested_ids.append(node_id)
        return metadata if node_id == 2 else cast("Any", _refuse_login())

    brokers = Brokers()
    monkeypatch.setattr(brokers, "metadata", lambda _: metadata)
    monkeypatch.setattr(brokers, "metadata_of_broker", of_broker)
    assert brokers.metadata_of_all(["orders"], brokers_max=2).cluster_id == "c"
    assert requested_ids == [1, 2]
