from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path

import pytest

from headrace.kit.contracts import check_store, store_checks
from headrace.kit.systems import ContractError
from headrace.stores.base import Share
from headrace.stores.keyvalue import KeyValueStore


def plain() -> KeyValueStore:
    return KeyValueStore("store")


def expiring() -> KeyValueStore:
    store = KeyValueStore("store", ttl_ms=1000)
    store.advance(5)
    return store


@pytest.mark.parametrize("check", store_checks())
@pytest.mark.parametrize("make", [plain, expiring])
def test_memory_keeps_the_contract(make, check: str) -> None:  # type: ignore[no-untyped-def]
    check_store(make, only=check)


@pytest.mark.parametrize("check", store_checks())
@pytest.mark.parametrize("make", [plain, expiring])
def test_rocksdb_keeps_the_contract(make, check: str, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    check_store(make, tmp_path, only=check)


class _ForgetsDeletes(KeyValueStore):
    def delete_many(self, keys: Sequence[bytes]) -> None:
        super().delete_many([key for key in keys if key != b"b"])


class _TellsTwice(KeyValueStore):
    def take_changes(self, version: int) -> list[bytes]:
        return super().take_changes(version) * 2


class _WithoutAnEnd(KeyValueStore):
    def range(
        self, start: bytes = b"", stop: bytes | None = None, *, reverse: bool = False
    ) -> Iterator[tuple[bytes, bytes]]:
        return super().range(start, None, reverse=reverse)


class _MovesTooLittle(KeyValueStore):
    def whole(self, share: Share | None = None) -> Iterator[bytes]:
        return islice(super().whole(share), 1)


@pytest.mark.parametrize(
    ("broken", "check"),
    [
        (_ForgetsDeletes, "deleting"),
        (_TellsTwice, "changes_are_reported_once"),
        (_WithoutAnEnd, "ranges"),
        (_MovesTooLittle, "moving"),
    ],
)
def test_a_broken_store_is_caught(broken: type[KeyValueStore], check: str) -> None:
    with pytest.raises(ContractError, match=check):
        check_store(lambda: broken("store"), only=check)
