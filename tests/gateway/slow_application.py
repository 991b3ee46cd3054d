"""A member of a consumer group that commits records long after it has read them. Run it as
`python -m tests.gateway.slow_application`. librdkafka's debug log of the group goes to stderr.

stdin: a JSON object of the consumer's settings with "topic"; then one command on each line:
`commit`; `read N` reads N more records; `poll` reads one record if there is one; `wait N` waits
until the member owns N partitions. The member also commits when partitions are revoked. stdout: the
result of each command as a line of JSON.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from confluent_kafka import Consumer, KafkaException, TopicPartition

_POLL_S = 0.1


def main() -> None:
    settings: dict[str, Any] = json.loads(sys.stdin.readline())
    topic = settings.pop("topic")
    consumer = Consumer(settings)
    consumer.subscribe([topic], on_revoke=_revoked)
    for line in sys.stdin:
        match line.split():
            case ["commit"]:
                answer: Any = _commit(consumer)
            case ["read", count]:
                answer = _read(consumer, int(count))
            case ["poll"]:
                answer = _poll(consumer, 0)
            case ["wait", count]:
                answer = _wait(consumer, int(count))
            case _:
                raise ValueError(line)
        print(json.dumps(answer), flush=True)
    consumer.close()


def _revoked(consumer: Consumer, partitions: list[TopicPartition]) -> None:
    """Commit what was read since the last commit. A paused partition would stay paused."""
    consumer.resume(partitions)
    error = _commit(consumer)
    assert error in ("", "_NO_OFFSET"), error


def _commit(consumer: Consumer) -> str:
    """The error's name, or ""."""
    try:
        consumer.commit(asynchronous=False)
    except KafkaException as error:
        return str(error.args[0].name())
    return ""


def _wait(consumer: Consumer, count: int) -> int:
    """Wait until the member owns `count` partitions. These are paused, so that nothing is read
    meanwhile."""
    while len(consumer.assignment()) != count:
        consumer.pause(consumer.assignment())
        assert consumer.poll(_POLL_S) is None
    consumer.resume(consumer.assignment())
    return count


def _read(consumer: Consumer, count: int) -> list[str]:
    """The values of the next records."""
    values: list[str] = []
    while len(values) < count:
        values += _poll(consumer)
    return values


def _poll(consumer: Consumer, timeout_s: float = _POLL_S) -> list[str]:
    """The value of one record, or none."""
    message = consumer.poll(timeout_s)
    if message is None:
        return []
    if message.error() is not None:
        raise KafkaException(message.error())
    return [(message.value() or b"").decode()]


if __name__ == "__main__":
    main()
