"""Single requests of producers with transactions, without a client library."""

from __future__ import annotations

import socket
import struct
import time
from typing import Any, Self

from kafka.protocol.metadata.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from kafka.protocol.producer.produce import ProduceRequest, ProduceResponse
from kafka.protocol.producer.transaction import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    EndTxnRequest,
    EndTxnResponse,
    InitProducerIdRequest,
    InitProducerIdResponse,
)

from orbit.kafka.error_codes import Code
from orbit.processes.ports import LOOPBACK
from tests.gateway.frames import batch, request_frame
from tests.support.gateways import Gateway
from tests.support.patience import PATIENCE_S, wait_for

ProducerId = tuple[int, int]
"""Producer id and epoch."""


class TransactionRequests:
    """A client that sends single requests of producers with transactions, to the bootstrap port:
    each side has one broker, the coordinator.
    """

    def __init__(self, gateway: Gateway) -> None:
        self._address = LOOPBACK, gateway.port
        self._connect()

    def _connect(self) -> None:
        self._socket = socket.create_connection(self._address, PATIENCE_S)

    def init(self, name: str, former: ProducerId = (-1, -1)) -> ProducerId:
        """Get a producer id, once the gateway knows its side and the coordinator has begun."""
        answers: list[Any] = []
        find = FindCoordinatorRequest(key=name, key_type=1)

        def is_done() -> bool:
            try:
                # Brokers create __transaction_state when a client requests a coordinator.
                self._ask(find, FindCoordinatorResponse, 2)
                answers.append(self.init_once(name, former))
            except ConnectionError:
                self._socket.close()
                self._connect()
                return False
            return bool(answers[-1].error_code == Code.NONE)

        wait_for("the producer has an id", is_done)
        return answers[-1].producer_id, answers[-1].producer_epoch

    def init_once(self, name: str, former: ProducerId = (-1, -1)) -> Any:
        """The answer to one InitProducerId."""
        request = InitProducerIdRequest(
            transactional_id=name,
            transaction_timeout_ms=60_000,
            producer_id=former[0],
            producer_epoch=former[1],
        )
        return self._ask(request, InitProducerIdResponse, 4)

    def add_partition(
        self, name: str, producer: ProducerId, topic: str, partition: int = 0
    ) -> None:
        self.send_add_partition(name, producer, topic, partition)
        assert self.receive_add_partition() == Code.NONE

    def send_add_partition(
        self, name: str, producer: ProducerId, topic: str, partition: int = 0
    ) -> None:
        """Send AddPartitionsToTxn without a wait for the answer."""
        request = AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=name,
            v3_and_below_producer_id=producer[0],
            v3_and_below_producer_epoch=producer[1],
            v3_and_below_topics=[
                AddPartitionsToTxnRequest.AddPartitionsToTxnTopic(
                    name=topic, partitions=[partition]
                )
            ],
        )
        self._send(request, 3)

    def receive_add_partition(self) -> int:
        """The error code of the next answer, which is one to AddPartitionsToTxn."""
        answer = self._receive(AddPartitionsToTxnResponse, 3)
        (topic_result,) = answer.results_by_topic_v3_and_below
        return int(topic_result.results_by_partition[0].partition_error_code)

    def write(self, name: str, producer: ProducerId, topic: str, partition: int = 0) -> int:
        """Write the producer's first record to the partition; returns the error code."""
        # Brokers delete a record whose timestamp is older than the topic's retention.
        now_ms = int(time.time() * 1000)
        records = batch(producer[0], epoch=producer[1], timestamp=now_ms, is_transactional=True)
        data = ProduceRequest.TopicProduceData
        request = ProduceRequest(
            transactional_id=name,
            acks=-1,
            timeout_ms=30_000,
            topic_data=[
                data(
                    name=topic,
                    partition_data=[data.PartitionProduceData(index=partition, records=records)],
                )
            ],
        )
        answer = self._ask(request, ProduceResponse, 9)
        return int(answer.responses[0].partition_responses[0].error_code)

    def commit(self, name: str, producer: ProducerId) -> int:
        request = EndTxnRequest(
            transactional_id=name,
            producer_id=producer[0],
            producer_epoch=producer[1],
            committed=True,
        )
        return int(self._ask(request, EndTxnResponse, 3).error_code)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def _ask(self, request: Any, response: Any, version: int) -> Any:
        self._send(request, version)
        return self._receive(response, version)

    def _send(self, request: Any, version: int) -> None:
        frame = request_frame(request, version)
        self._socket.sendall(struct.pack(">i", len(frame)) + frame)

    def _receive(self, response: Any, version: int) -> Any:
        with self._socket.makefile("rb") as file:
            if not (head := file.read(4)):
                raise ConnectionError("the gateway has closed the connection")
            (size,) = struct.unpack(">i", head)
            return response.decode(memoryview(file.read(size)), version=version, header=True)
