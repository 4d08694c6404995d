"""The systems one container talks to: each opened once, with one producer, shared by its tasks (one thread)."""

from __future__ import annotations

from headrace.core.errors import UsageError
from headrace.systems.base import Admin, Consumer, Producer, RowProducer, System
from headrace.systems.registry import SystemSpec, open_system


class Connections:
    """Systems by name, opened when first needed and closed together."""

    def __init__(self) -> None:
        self._systems: dict[str, System] = {}
        self._admins: dict[str, Admin] = {}
        self._record_producers: dict[str, Producer] = {}
        self._row_producers: dict[str, RowProducer] = {}

    def system(self, spec: SystemSpec) -> System:
        """The open system."""
        if spec.name not in self._systems:
            self._systems[spec.name] = open_system(spec)
        return self._systems[spec.name]

    def admin(self, spec: SystemSpec) -> Admin:
        """The system's admin."""
        if spec.name not in self._admins:
            self._admins[spec.name] = self.system(spec).admin()
        return self._admins[spec.name]

    def consumer(self, spec: SystemSpec) -> Consumer:
        """A new consumer; the caller closes it."""
        return self.system(spec).consumer()

    def record_producer(self, spec: SystemSpec) -> Producer:
        """The container's producer for a record system; raises ``UsageError`` for a row system."""
        self._open_producer(spec)
        producer = self._record_producers.get(spec.name)
        if producer is None:
            raise UsageError(
                f"system {spec.name!r} of kind {spec.kind!r} keeps rows, not frames",
                hint="intermediate streams need a record system, such as the embedded log",
            )
        return producer

    def row_producer(self, spec: SystemSpec) -> RowProducer | None:
        """The container's producer for a row system; None when it is a record system."""
        self._open_producer(spec)
        return self._row_producers.get(spec.name)

    def flush_records(self) -> None:
        """Have everything sent to record systems acknowledged."""
        for producer in self._record_producers.values():
            producer.flush()

    def flush_all(self) -> None:
        """Have everything acknowledged, row systems included."""
        self.flush_records()
        for producer in self._row_producers.values():
            producer.flush()

    def close(self) -> None:
        """Close all producers."""
        for producer in self._record_producers.values():
            producer.close()
        for row_producer in self._row_producers.values():
            row_producer.close()
        self._record_producers.clear()
        self._row_producers.clear()

    def _open_producer(self, spec: SystemSpec) -> None:
        if spec.name in self._record_producers or spec.name in self._row_producers:
            return
        producer = self.system(spec).producer()
        if isinstance(producer, RowProducer):
            self._row_producers[spec.name] = producer
        else:
            self._record_producers[spec.name] = producer
