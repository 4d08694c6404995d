"""What an app remembers of a stream that it reads: which stream it is, how many slots it has, and where it began.

The number of slots is the number of partitions, so it never changes. A stream that was deleted and created again has
the same name and other records, and its shards have the same names: only when it was created tells the two apart.
``known`` is what is known of shards without any commit of the app (see ``dealing``). The memo is a small file in the
app's home; the first run writes it, and nothing changes it later. A container without that home gets its contents
with the plan.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from headrace.core.durable import create_file, writing
from headrace.core.errors import StorageError
from headrace.core.private_folder import make_private_folder
from headrace.core.records import decode_record
from headrace.systems.kinesis.shard_position import ShardState, parse_state

FORMAT = 1


class Memo(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The contents. Times are milliseconds since the epoch: Amazon's of the creation, the driver's of the first run."""

    format: int = FORMAT
    stream: str
    created_ms: int
    slots: int
    first_seen_ms: int
    known: dict[str, str]

    def states(self) -> dict[str, ShardState]:
        """What is known of shards."""
        return {shard: parse_state(text) for shard, text in self.known.items()}


_DECODER = msgspec.json.Decoder(Memo)


def read_memo(path: Path) -> Memo | None:
    """Return the memo; None before the first run. Raises ``DataError`` if it can't be read."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise StorageError(f"can't read {path}: {error}", hint="check that this user may read the folder") from error
    return decode_memo(data, f"{path}, the app's record of a Kinesis stream,")


def decode_memo(data: bytes, what: str) -> Memo:
    """Read the contents of a memo. Raises ``DataError``, which says ``what`` they are."""
    return decode_record(_DECODER, data, what, FORMAT)


def write_memo(path: Path, memo: Memo) -> Memo:
    """Write the memo durably, unless one exists; return the existing one."""
    with writing(path):
        make_private_folder(path.parent)
    create_file(path, msgspec.json.encode(memo))
    found = read_memo(path)
    if found is None:
        raise StorageError(f"{path} has disappeared", hint="check whether the app's home was deleted")
    return found
