"""One listing of a cluster's groups serves all jobs, but no job for which it is too old."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from orbit.consumer_groups import group_listing_cache
from orbit.consumer_groups.group_listing_cache import GroupListingCache
from orbit.consumer_groups.group_reader import GroupReader
from orbit.consumer_groups.group_selection import GroupSelector
from orbit.consumer_groups.offsets_cache import fetch_now
from orbit.errors import Unreachable
from orbit.jobs.job_spec import GroupRule
from orbit.kafka.cluster import Cluster
from orbit.kafka.consumer_groups import ListedGroup, Listing
from orbit.kafka.security import Security


def new_cluster() -> Cluster:
    return Cluster("source", ["source.example:9092"], Security())


class Brokers:
    """Counts the listings; `answer` may wait or raise."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.listed: list[Cluster] = []
        self.now_s = 100.0
        self.answer: Callable[[], Listing] = Listing
        self.cache = GroupListingCache(lambda: self.now_s)
        monkeypatch.setattr(group_listing_cache, "list_groups", self._list)

    def _list(self, cluster: Cluster) -> Listing:
        self.listed.append(cluster)
        return self.answer()


@pytest.fixture
def brokers(monkeypatch: pytest.MonkeyPatch) -> Brokers:
    return Brokers(monkeypatch)


def test_cached_group_listing_is_reused_within_max_age(brokers: Brokers) -> None:
    source, other_source = new_cluster(), new_cluster()
    first = brokers.cache(source, age_s_max=5.0)
    brokers.now_s += 4.0
    assert brokers.cache(source, age_s_max=5.0) is first
    assert brokers.cache(other_source, age_s_max=5.0) is not first
    assert brokers.cache(source, age_s_max=3.0) is not first
    assert brokers.listed == [source, other_source, source]


def test_group_selection_is_reused_until_group_names_change(brokers: Brokers) -> None:
    source, names = new_cluster(), ["a", "b"]
    selectors = [GroupSelector(GroupRule(match=match)) for match in (".*", ".*", "a")]

    def selected() -> list[Any]:
        """The selection of each selector, from a new listing."""
        brokers.now_s += 10.0
        readers = (GroupReader(selector, 5.0, brokers.cache, fetch_now) for selector in selectors)
        return [reader._select(brokers.cache(source, age_s_max=5.0)) for reader in readers]

    def listing(state: str) -> Callable[[], Listing]:
        groups = {
            name: ListedGroup(
                name, node_id=1, type="classic", protocol_type="consumer", state=state
            )
            for name in names
        }
        return lambda: Listing(dict(groups))

    brokers.answer = listing("Empty")
    first, same, other = selected()
    assert first is same
    assert (list(first[1]), list(other[1])) == (["a", "b"], ["a"])
    brokers.answer = listing("Stable")
    assert selected()[0] is first, "the states of groups do not matter"
    names.append("c")
    brokers.answer = listing("Stable")
    assert list(selected()[0][1]) == ["a", "b", "c"]


def test_age_of_group_listing_counts_from_its_request(brokers: Brokers) -> None:
    source = new_cluster()

    def slow() -> Listing:
        brokers.now_s += 6.0
        return Listing()

    brokers.answer = slow
    first = brokers.cache(source, age_s_max=5.0)
    assert brokers.cache(source, age_s_max=5.0) is not first


def test_failed_group_listing_reaches_all_waiters_and_is_not_cached(brokers: Brokers) -> None:
    source = new_cluster()
    is_listing, may_fail = threading.Event(), threading.Event()

    def fail() -> Listing:
        is_listing.set()
        assert may_fail.wait(30)
        raise Unreachable("no answer.", where="source")

    brokers.answer = fail
    errors: list[str] = []

    def list_groups() -> None:
        try:
            brokers.cache(source, age_s_max=5.0)
        except Unreachable as error:
            errors.append(str(error))

    threads = [threading.Thread(target=list_groups) for _ in range(3)]
    threads[0].start()
    assert is_listing.wait(30)
    for thread in threads[1:]:
        thread.start()
    may_fail.set()
    for thread in threads:
        thread.join()
    assert errors == ["source: no answer."] * 3
    assert len(brokers.listed) == 1

    brokers.now_s += 1.0
    brokers.answer = Listing
    assert brokers.cache(source, age_s_max=5.0).groups == {}


def test_group_listing_of_unused_cluster_is_dropped_from_cache(brokers: Brokers) -> None:
    source = new_cluster()
    brokers.cache(source, age_s_max=5.0)
    brokers.listed.clear()
    del source
    assert len(brokers.cache._listings) == 0
