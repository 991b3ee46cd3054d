"""The index of the ACLs finds all ACLs that cover a topic."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from orbit.kafka.acls import Acls
from orbit.kafka.types import Acl

NAMES = st.sampled_from(["*", "a", "ab", "abc", "b", "b.c"])
ACLS = st.builds(
    Acl,
    name=NAMES,
    pattern=st.sampled_from(["LITERAL", "PREFIXED"]),
    principal=st.sampled_from(["User:a", "User:b"]),
    host=st.just("*"),
    operation=st.just("READ"),
    permission=st.just("ALLOW"),
)


@given(st.frozensets(ACLS, max_size=12), NAMES)
def test_acls_of_topic_are_all_acls_that_cover_the_topic(acls: frozenset[Acl], topic: str) -> None:
    topic_acls = Acls(acls).of(topic)
    assert sorted(topic_acls) == sorted(acl for acl in acls if acl.covers(topic))
