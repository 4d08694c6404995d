"""The process in which inputs are decoded. It may be ended by any of them, so it leaves behind which one it was.

``python -m fuzz.child DECODERS SEED INPUTS NOTE``. Before an input is decoded, it goes to the file NOTE. That is mapped
into memory, so it is there whatever happens to the process. At the end a line of JSON says what was found.
"""

from __future__ import annotations

import gc
import mmap
import resource
import signal
import sys
import traceback
from collections import Counter
from pathlib import Path
from random import Random

import msgspec

from fuzz.decoders import Decoding, decodings
from fuzz.mutations import MOST_BYTES, mutated

_HEAD = 40
_NAME = 32
NOTE_BYTES = _HEAD + MOST_BYTES
MEMORY_BYTES = 6 << 30
INPUT_S = 10
"""How long one input may take."""
_FINDINGS_MAX = 20
_ALIKE = 60
"""Findings whose errors begin with the same characters are taken for one."""
_POOL_MAX = 64


class Finding(msgspec.Struct):
    """An input that raised what it shouldn't have."""

    decoder: str
    error: str
    trace: str
    data: bytes


class Summary(msgspec.Struct):
    """What a child has done: inputs and accepted inputs by decoder."""

    inputs: dict[str, int]
    accepted: dict[str, int]
    findings: list[Finding]


class Note:
    """The file that says which input was at work."""

    def __init__(self, path: Path) -> None:
        with path.open("r+b") as file:
            self._mapped = mmap.mmap(file.fileno(), NOTE_BYTES)

    def write(self, decoder: str, data: bytes) -> None:
        """Note an input."""
        head = len(data).to_bytes(_HEAD - _NAME, "little") + decoder.encode().ljust(_NAME)
        self._mapped[: _HEAD + len(data)] = head + data

    @staticmethod
    def read(path: Path) -> tuple[str, bytes]:
        """The decoder and the input that were noted last."""
        data = path.read_bytes()
        size = int.from_bytes(data[: _HEAD - _NAME], "little")
        return data[_HEAD - _NAME : _HEAD].decode().strip("\0 "), data[_HEAD : _HEAD + size]


def tried(name: str, decoding: Decoding, data: bytes) -> tuple[bool, Finding | None]:
    """Whether an input was accepted, and what is wrong."""
    signal.alarm(INPUT_S)  # its default action ends the process
    try:
        decoding.run(data)
    except decoding.refusals:
        return False, None
    except BaseException as error:  # noqa: BLE001 - it is what is looked for
        text = f"{type(error).__name__}: {str(error)[:200]}"
        return False, Finding(name, text, traceback.format_exc(limit=-6), data)
    finally:
        signal.alarm(0)
    return True, None


def fuzzed(names: list[str], seed: int, count: int, note: Note) -> Summary:
    """Give each decoder so many damaged inputs."""
    known = decodings()
    inputs, accepted = Counter[str](), Counter[str]()
    findings, seen = list[Finding](), set[tuple[str, str]]()
    gc.freeze()
    for name in names:
        for data in _Inputs(known[name], Random(f"{seed} {name}"), count):
            note.write(name, data)
            was_accepted, finding = tried(name, known[name], data)
            inputs[name] += 1
            accepted[name] += was_accepted
            key = (name, finding.error[:_ALIKE]) if finding is not None else None
            if finding is not None and key is not None and key not in seen and len(seen) < _FINDINGS_MAX:
                seen.add(key)
                findings.append(finding)
    return Summary(inputs, accepted, findings)


class _Inputs:
    """Damaged inputs of a decoder. What it has damaged before is damaged further."""

    def __init__(self, decoding: Decoding, random: Random, count: int) -> None:
        self._decoding = decoding
        self._random = random
        self._left = count
        self._pool: list[bytes] = []

    def __iter__(self) -> _Inputs:
        return self

    def __next__(self) -> bytes:
        if self._left == 0:
            raise StopIteration
        self._left -= 1
        random, good = self._random, self._decoding.samples
        from_pool = bool(self._pool) and random.random() < 0.2
        data = mutated(random, random.choice(self._pool if from_pool else good), random.choice(good))
        if random.random() < 0.5:
            data = self._decoding.repaired(data)
        if random.random() < 0.05 and len(data) < MOST_BYTES // 16:
            if len(self._pool) < _POOL_MAX:
                self._pool.append(data)
            else:
                self._pool[random.randrange(_POOL_MAX)] = data
        return data


def main(arguments: list[str]) -> int:
    """Run, and print the summary."""
    names, seed, count, note = arguments
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    summary = fuzzed(names.split(","), int(seed), int(count), Note(Path(note)))
    sys.stdout.buffer.write(msgspec.json.encode(summary))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
