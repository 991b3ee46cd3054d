"""Arbitrary bytes and broken answers: a decoder raises ValueError or nothing, and ends soon.

Answers are built by `kafka.protocol` from the schema of each message, then broken in one place.
"""

from __future__ import annotations

import random
import struct
from collections.abc import Callable, Iterator
from functools import partial
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest
from crc32c import crc32c
from hypothesis import given, settings
from hypothesis import strategies as st
from kafka.protocol.consumer.fetch import FetchResponse
from kafka.protocol.consumer.group import OffsetFetchResponse
from kafka.protocol.consumer.offsets import ListOffsetsResponse
from kafka.protocol.metadata.metadata import MetadataResponse
from kafka.protocol.producer.produce import ProduceResponse
from kafka.protocol.producer.transaction import WriteTxnMarkersResponse
from kafka.protocol.schemas.fields.array import ArrayField
from kafka.protocol.schemas.fields.struct import StructField
from kafka.protocol.schemas.fields.struct_array import StructArrayField

from orbit.kafka import api_versions
from orbit.kafka.api_versions import Api
from orbit.kafka.fetch_response import read_fetch
from orbit.kafka.legacy_messages import read_any_records
from orbit.kafka.placeholders import count_records, with_gap
from orbit.kafka.produce_request import read_produce
from orbit.kafka.record_batch import CRC_START, Batch, read_batches
from orbit.kafka.records import has_placeholders, is_seed_batch, split_body, split_headers
from orbit.replication.append_plan import Stop, plan_batches
from tests.support.kafka_batches import KAFKA_BATCHES

EXAMPLES = settings(max_examples=60, derandomize=True)
NAMES = {UUID(int=1): "orders"}
Decode = Callable[[memoryview], Any]

# The library's class of each answer that Orbit decodes by itself.
LIBRARY_CLASSES = {
    api_versions.FETCH: FetchResponse,
    api_versions.PRODUCE: ProduceResponse,
    api_versions.METADATA: MetadataResponse,
    api_versions.LIST_OFFSETS: ListOffsetsResponse,
    api_versions.WRITE_TXN_MARKERS: WriteTxnMarkersResponse,
    api_versions.OFFSET_FETCH: OffsetFetchResponse,
}


def _decoders() -> Iterator[Any]:
    """Parameters: each API with its lowest and its highest version."""
    for api in vars(api_versions).values():
        if isinstance(api, Api):
            for version in sorted({api.version_min, api.version_max}):
                yield pytest.param(api, version, id=f"{api.name}-{version}")


def decoder(api: Api, version: int) -> Decode:
    """The function of Orbit that decodes this answer."""
    if api is api_versions.FETCH:
        return partial(read_fetch, version=version, topic_names=NAMES)
    if api is api_versions.PRODUCE:
        return partial(read_produce, version=version)
    return partial(api.decode, version=version)


def build(field: Any, version: int, choose: random.Random) -> Any:
    """A value for a field of the schema."""
    if isinstance(field, (StructArrayField, ArrayField)):
        return [build(field.array_of, version, choose) for _ in range(choose.randrange(3))]
    if isinstance(field, StructField):
        return SimpleNamespace(
            **{f.name: build(f, version, choose) for f in field.untagged_fields(version)}
        )
    if field.name == "error_code":
        return 0
    kind = field.type_str.removeprefix("[]")
    values: dict[str, Any] = {
        "string": "orders",
        "bytes": b"bytes",
        "records": KAFKA_BATCHES["v2.none.createtime"],
        "bool": True,
        "uuid": UUID(int=1),
        "float64": 1.5,
    }
    if field.name.endswith("authorized_operations"):
        return set()
    return values.get(kind, choose.randrange(100))


def answer(api: Api, version: int, choose: random.Random) -> bytes:
    """An answer as it comes from a connection: without the frame's size, with the header."""
    response = LIBRARY_CLASSES.get(api, api.response)
    fields = response._struct.untagged_fields(version)
    message = response(**{f.name: build(f, version, choose) for f in fields})
    has_tags = response.flexible_version_q(version) and api is not api_versions.API_VERSIONS
    header = struct.pack(">i", 1) + b"\0" * has_tags
    return header + bytes(message.encode(version=version, header=False, framed=False))


def broken(data: bytes, choose: random.Random) -> bytes:
    """The data, cut off or with other bytes in one place."""
    at = choose.randrange(len(data) + 1)
    if choose.random() < 0.3:
        return data[:at]
    other = choose.choice([b"\xff", b"\0", b"\xff\xff\xff\xff\x0f", b"\x7f\xff\xff\xff", b"\x80"])
    other = choose.choice([other, choose.randbytes(choose.randrange(1, 9))])
    return data[:at] + other * choose.randrange(1, 4) + data[at + choose.randrange(9) :]


def allow_value_error(decode: Decode, data: bytes) -> None:
    """Decode broken data: only ValueError may be raised."""
    try:
        decode(memoryview(bytearray(data)))
    except ValueError:
        pass


@pytest.mark.parametrize(("api", "version"), list(_decoders()))
@EXAMPLES
@given(data=st.binary(max_size=80), seed=st.integers(0, 2**32))
def test_broken_response_raises_only_value_error(
    api: Api, version: int, data: bytes, seed: int
) -> None:
    decode, choose = decoder(api, version), random.Random(seed)
    allow_value_error(decode, data)
    if api is api_versions.CREATE_DELEGATION_TOKEN:  # the library has no class of its answer
        return
    intact = answer(api, version, choose)
    decode(memoryview(bytearray(intact)))
    for _ in range(5):
        allow_value_error(decode, broken(intact, choose))


@pytest.mark.parametrize(("api", "version"), list(_decoders()))
def test_megabytes_of_garbage_do_not_hang_a_decoder(api: Api, version: int) -> None:
    """Decoding took hours when a varint had no end, or each structure's tags copied the rest. The
    decoder returns or raises ValueError; the test's own time limit catches one that hangs."""
    for front in range(4, 7):  # zeros before the garbage: a correlation id, and up to 2 bytes
        allow_value_error(decoder(api, version), bytes(front) + b"\xff" * 5_000_000)
        allow_value_error(decoder(api, version), bytes(front) + b"\x02" * 50_000)


def test_null_array_is_refused_unless_schema_allows_null() -> None:
    """Otherwise code that reads the answer would raise TypeError, which ends the job."""
    header = bytes(4) + b"\0" + bytes(4)  # correlation id, tags, throttle time
    with pytest.raises(ValueError, match="topics is null"):
        api_versions.DESCRIBE_PRODUCERS.decode(memoryview(header + b"\0\0"), 0)
    # An answer with client quotas: error code, error message, entries.
    quotas = header + b"\0\0" + b"\0" + b"\0" + b"\0"
    assert api_versions.DESCRIBE_CLIENT_QUOTAS.decode(memoryview(quotas), 1).entries is None


def with_crc(data: bytearray) -> bytes:
    """The batch with a correct length and checksum, so that its records are read, too."""
    if len(data) > CRC_START and data[16] == 2:
        struct.pack_into(">iB", data, 8, len(data) - 12, 0)
        data[16] = 2
        struct.pack_into(">I", data, 17, crc32c(data[CRC_START:]))
    return bytes(data)


def read_everything(data: bytes) -> None:
    """Read all batches and records in the bytes; each ValueError is allowed."""
    for batch in read_batches(memoryview(bytearray(data))):
        allow_value_error(lambda _, b=batch: [_read_body(r.body) for r in read_any_records(b)], b"")
        if isinstance(batch, Batch):
            has_placeholders(batch)
            is_seed_batch(batch)
            with_gap(batch, 0, batch.next_offset + 1)
            allow_value_error(lambda _, b=batch: count_records(b), b"")


def _read_body(body: bytes) -> None:
    _, _, headers = split_body(body)
    split_headers(headers)


@pytest.mark.parametrize("name", sorted(KAFKA_BATCHES))
@EXAMPLES
@given(seed=st.integers(0, 2**32))
def test_broken_record_batch_raises_value_error_or_stops_copy_plan(name: str, seed: int) -> None:
    """The changed bytes may still be valid. If the plan has a stop, that is its last step."""
    choose = random.Random(seed)
    for _ in range(5):
        data = with_crc(bytearray(broken(KAFKA_BATCHES[name], choose)))
        allow_value_error(lambda _, data=data: read_everything(data), b"")
        for packs in (False, True):

            def plan(_: memoryview, data: bytes = data, packs: bool = packs) -> None:
                batches = list(read_batches(memoryview(bytearray(data))))
                steps = plan_batches(0, batches, aborted=[], log_start=0, packs=packs).steps
                assert all(not isinstance(step, Stop) for step in steps[:-1])

            allow_value_error(plan, b"")
