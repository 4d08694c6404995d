"""The page on formats lists every message and record of SEP-10, with the names that their fields have here."""

import re
from pathlib import Path

import pytest

from headrace.core import frame
from headrace.protocol import record

PAGE = Path(__file__).parents[3] / "docs" / "formats.md"
SEP_10 = {
    "message header": "MessageType ProducerId Generation CheckpointVersion Seq",
    "Checkpoint Command Message": "ProducerId Generation CheckpointVersion Seq",
    "Restore Checkpoint Command": "Generation CheckpointVersion",
    "Change Log Message": "Generation Key Value",
    "Change Log Commit Message": "CheckpointMetadata Generation CheckpointOutputSeq Topic PartitionAndSeq Partition "
    "Seq TopicPartitionMetadata PartitionMetadata PartitionId Offset ParentCheckpointMetadata ProducerId "
    "CheckpointVersion ResumeOffset RecoveryOffset",
    "Change Log Abort Message": "Generation",
    "RocksDB checkpoint data": "Offset Generation CheckpointVersion",
}


def rows():
    section = PAGE.read_text().split("## SEP-10's formats, by name\n")[1].split("\n## ")[0]
    table = [line.strip("| ").split(" | ") for line in section.splitlines() if line.startswith("| ")]
    return table[2:]


@pytest.mark.parametrize("message", SEP_10)
def test_every_field_has_its_row(message):
    told = {word for name, fields, _ in rows() if name == message for word in re.findall(r"\w+", fields)}
    assert told == set(SEP_10[message].split())


def test_nothing_else_is_named():
    assert {name for name, _, _ in rows()} == set(SEP_10)


def test_what_fields_are_called_here_is_there():
    named = [name for _, _, here in rows() for name in re.findall(r"`(\w+)\.(\w+)`", here)]
    assert len(named) > 30
    for owner, field in named:
        kind = getattr(frame, owner, None) or getattr(record, owner)
        assert field in getattr(kind, "__struct_fields__", ()) or hasattr(kind, field), f"{owner}.{field}"
