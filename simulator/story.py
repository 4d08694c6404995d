"""Lines of a story: instructions, frames and verdicts in few words."""

from __future__ import annotations

from headrace.core.frame import Checkpoint, ControlMessage, Header, Restore
from headrace.protocol import instructions as do


def brief(step: do.Instruction) -> str:
    """An instruction."""
    match step:
        case do.AppendAbort(header=header):
            return f"append abort g{header.generation}"
        case do.SendControl(frames=frames):
            return "send " + (frame(frames[0].header, frames[0].message) if frames else "nothing")
        case do.Resume(record=record):
            return f"resume from commit {record.version} of g{record.generation}" if record else "resume from nothing"
        case _:
            return str(step)


def frame(header: Header, control: ControlMessage | None) -> str:
    """A frame: kind, producer, (generation, #seq), label."""
    text = f"{header.kind.name.lower()} p{header.producer} (g{header.generation}, #{header.seq}, v{header.version})"
    match control:
        case Checkpoint(next_version=following):
            return f"{text} next {following}"
        case Restore(seq=seq, next_version=following, committed_by=generation):
            return f"{text} S={seq} by g{generation} next {following}"
        case _:
            return text


def answer(verdict: do.Verdict | do.Forget) -> str:
    """A verdict."""
    return verdict.value if isinstance(verdict, do.Verdict) else f"taken, forget buffered above #{verdict.seq}"
