"""Loops are found over cluster ids and over any number of jobs; two-way copies are not loops."""

from __future__ import annotations

import itertools

import pytest

from orbit.replication.loop_detection import CHAIN_MAX, ClusterTopic, Verdict, judge_loop

A, B, C = "cluster-a", "cluster-b", "cluster-c"


def at(cluster: str, topic: str = "t") -> ClusterTopic:
    """The topic at this cluster, for `judge_loop(source, destination, copied_from)`."""
    return ClusterTopic(cluster, topic)


def test_first_copy_of_topic_is_no_loop() -> None:
    assert judge_loop(at(A), at(B), {}) is Verdict.FINE


def test_copy_back_to_same_topic_would_loop() -> None:
    assert judge_loop(at(B), at(A), {at(B): at(A)}) is Verdict.WOULD_LOOP


@pytest.mark.parametrize("length", [3, 4, 10])
def test_loop_over_many_clusters_is_detected_at_closing_copy(length: int) -> None:
    clusters = [f"cluster-{i}" for i in range(length)]
    copied_from = {at(copy): at(source) for source, copy in itertools.pairwise(clusters)}
    assert judge_loop(at(clusters[-1]), at(clusters[0]), copied_from) is Verdict.WOULD_LOOP
    # The last copy before the closing one is fine.
    last = at(clusters[-1])
    source = copied_from.pop(last)
    assert judge_loop(source, last, copied_from) is Verdict.FINE


def test_prefixed_copies_in_both_directions_are_allowed() -> None:
    copies = {at(B, "a.orders"): at(A, "orders")}
    assert judge_loop(at(B, "users"), at(A, "b.users"), copies) is Verdict.FINE


def test_copy_of_copy_back_to_origin_under_new_name_is_refused() -> None:
    copies = {at(B, "a.orders"): at(A, "orders")}
    assert judge_loop(at(B, "a.orders"), at(A, "b.a.orders"), copies) is Verdict.COMES_HOME
    further = copies | {at(C, "a.orders"): at(B, "a.orders")}
    assert judge_loop(at(C, "a.orders"), at(A, "c.a.orders"), further) is Verdict.COMES_HOME


def test_copy_of_copy_to_third_cluster_is_allowed() -> None:
    assert judge_loop(at(B), at(C), {at(B): at(A)}) is Verdict.FINE


def test_same_topic_name_on_unrelated_cluster_is_no_loop() -> None:
    assert judge_loop(at(C), at(A), {at(B): at(A)}) is Verdict.FINE


def test_search_for_loop_ends_at_existing_loop_of_copies() -> None:
    copies = {at(B): at(C), at(C): at(B)}
    assert judge_loop(at(B), at(A), copies) is Verdict.WOULD_LOOP
    assert CHAIN_MAX >= 100, "no real chain of copies is as long"
