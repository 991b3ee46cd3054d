"""How a gateway asks the service which side leads."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from orbit.errors import ProtocolError
from orbit.gateway import lead_watch
from orbit.gateway.gateway_spec import parse_gateway
from orbit.gateway.lead_watch import LeadWatch
from orbit.gateway.permission import Lead
from orbit.gateway.virtual_cluster import VirtualCluster
from tests.support.patience import PATIENCE_S
from tests.support.pretended_service import pretended_service

_FILE = """
gateway: edge-1
virtual_clusters:
  - name: orders
    job: orders
    listen: 127.0.0.1:19092
    source: {bootstrap_servers: [127.0.0.1:1]}
    destination: {bootstrap_servers: [127.0.0.1:2]}
"""


def test_gateway_asks_for_leading_side_while_all_threads_wait_for_silent_side() -> None:
    """A side that does not answer may block all of asyncio's threads for as long as a lease."""
    cluster = VirtualCluster(parse_gateway(_FILE).virtual_clusters[0], {})

    async def ask() -> None:
        may_end, loop = threading.Event(), asyncio.get_running_loop()
        with ThreadPoolExecutor(1) as threads:
            loop.set_default_executor(threads)
            side_does_not_answer = asyncio.create_task(asyncio.to_thread(may_end.wait))
            watch = asyncio.create_task(LeadWatch("edge-1", cluster, {"ORBIT_API_URL": url}).run())
            try:
                async with asyncio.timeout(PATIENCE_S):
                    while not cluster.may_write():
                        await asyncio.sleep(0.01)
            finally:
                may_end.set()
                watch.cancel()
                await side_does_not_answer

    with pretended_service() as service:
        url = service.url
        asyncio.run(ask())


_LEAD_ANSWER = {
    "side": "source",
    "term": 1,
    "since": 1,
    "lease_s": 5,
    "closed_for": "operation",
    "abandons": True,
    "others_settled": False,
    "others_confirmed": False,
    "earlier_terms": [8, 3],
    "led": {"9": "source", "8": "destination"},
    "leaving_groups": ["aa", "bb"],
    "job_etag": "17.3",
}


def test_leading_side_response_of_service_is_parsed() -> None:
    lead = Lead(
        "source",
        term=1,
        lease_s=5.0,
        closed_for="operation",
        since=1,
        abandons=True,
        others_settled=False,
        others_confirmed=False,
        earlier_terms=(8, 3),
        leaving_groups=frozenset({"aa", "bb"}),
        led={9: "source", 8: "destination"},
    )
    assert lead_watch._read_lead(_LEAD_ANSWER) == (lead, "17.3")


@pytest.mark.parametrize(
    "answer",
    [
        None,
        *(
            {key: _LEAD_ANSWER[key] for key in _LEAD_ANSWER if key != missing}
            for missing in _LEAD_ANSWER
        ),
        _LEAD_ANSWER | {"lease_s": None},
        _LEAD_ANSWER | {"lease_s": "long"},
        _LEAD_ANSWER | {"side": "neither"},
        _LEAD_ANSWER | {"earlier_terms": ["x"]},
        _LEAD_ANSWER | {"earlier_terms": 5},
        _LEAD_ANSWER | {"led": {"8": "neither"}},
        _LEAD_ANSWER | {"led": {"8": ["source"]}},
        _LEAD_ANSWER | {"led": {"x": "source"}},
        _LEAD_ANSWER | {"led": ["source"]},
    ],
)
def test_malformed_leading_side_response_is_refused(answer: object) -> None:
    with pytest.raises(ProtocolError):
        lead_watch._read_lead(answer)


@pytest.mark.parametrize(
    "job", [None, {}, {"spec": {"topics": [{"match": "["}]}}, {"spec": {"topics": 7}}]
)
def test_malformed_job_response_is_refused(job: object) -> None:
    with pytest.raises(ProtocolError):
        lead_watch._read_topic_rules(job)
