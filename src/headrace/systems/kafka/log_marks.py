"""Marks after the last records of a stream that ends. A mark is a record without a value, unlike any frame.

A mark may be there twice: which one counts is recorded.
"""

from __future__ import annotations

from headrace.core.errors import IndeterminateWriteError
from headrace.core.ids import Offset
from headrace.systems.kafka.client import ANSWER_S, KafkaError, Message, open_plain_producer
from headrace.systems.kafka.log_topics import LogOptions

_KEY = b"headrace-end"
"""For people who look at the topic; nothing is decided by it."""


def mark_ends(options: LogOptions, stream: str, partitions: int) -> tuple[Offset, ...]:
    """Append a mark to each partition; return where they are."""
    topic = options.topic(stream)
    producer = open_plain_producer(options.settings)
    ends: dict[int, Offset] = {}
    errors: list[KafkaError] = []

    def delivered(error: KafkaError | None, message: Message) -> None:
        partition, offset = message.partition(), message.offset()
        if error is not None:
            errors.append(error)
        elif partition is not None and offset is not None and offset >= 0:
            ends[partition] = offset

    doing = f"sealing topic {topic!r}"
    with producer.translating(doing):
        for partition in range(partitions):
            producer.raw.produce(topic, None, key=_KEY, partition=partition, on_delivery=delivered)
        producer.raw.flush(ANSWER_S + 1)
    if errors:
        raise producer.problem(errors[0], doing)
    if len(ends) < partitions:
        raise IndeterminateWriteError(
            f"{doing}: no broker answered", hint="seal the stream again: this is safe to repeat"
        )
    return tuple(ends[partition] for partition in range(partitions))
