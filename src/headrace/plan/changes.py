"""Compare a changed app with the kept state of an earlier version, part by part, before anything runs. Pure.

Parts with the same meaning are kept; tables gain columns, windows gain aggregates; new parts begin empty. Everything
else is refused, unless the user accepts that it starts over or is lost.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import NamedTuple

from headrace.core.errors import PlanError, UsageError
from headrace.plan.inventory import IDENTITY, Consent, Heritage, Inventory, Part, PartKind, StageRecord


class _Words(NamedTuple):
    """What a kind of part is called, what is lost with one, and how one starts over."""

    name: str
    loses: str = ""
    again: str = ""


_WORDS: Mapping[PartKind, _Words] = {
    "input": _Words("input", "its position would be forgotten", "it is read again from its start"),
    "side input": _Words("side input", "its position would be forgotten", "it is read again from its start"),
    "stream": _Words("intermediate stream", "messages that wait in it would be lost", "it begins empty"),
    "output": _Words("output"),
    "target": _Words("output", "committed rows that aren't published yet would be lost", "its outbox begins empty"),
    "table": _Words("table", "its rows would be lost", "it begins empty"),
    "step": _Words("step", "its state would be lost", "it begins empty"),
}


class Verdict(Enum):
    """The verdict on a part, from the best to the worst."""

    KEPT = "kept"
    NEW = "new"
    GROWN = "grown"
    RENAMED = "renamed"
    ENDED = "ended"
    DROPPED = "dropped"
    UNKNOWN = "unknown"
    REFUSED = "refused"


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """The verdict on one part of the app. ``flag`` is the option that accepts a refused change, if there is one.

    ``outside``: it is that of a foreign system, which no option overrules.
    """

    verdict: Verdict
    kind: PartKind
    id: str
    owner: str
    stage: str
    why: str = ""
    flag: str | None = None
    outside: bool = False

    @property
    def what(self) -> str:
        return f"{_WORDS[self.kind].name} {self.id!r}"


@dataclass(frozen=True, slots=True)
class Changes:
    """The changes of an app, each part once: first by verdict, the refused ones last, then by stage and id."""

    parts: tuple[Change, ...]

    def of(self, *verdicts: Verdict) -> tuple[Change, ...]:
        return tuple(change for change in self.parts if change.verdict in verdicts)

    @property
    def notable(self) -> tuple[Change, ...]:
        return tuple(change for change in self.parts if change.verdict is not Verdict.KEPT)

    def check(self) -> None:
        refused = self.of(Verdict.REFUSED)
        if not refused:
            return
        foreign = all(change.outside for change in refused)
        what = "can't write its outputs" if foreign else "doesn't match its kept state"
        lines = [f"  {change.what}: {change.why}" for change in refused]
        flags = list(dict.fromkeys(change.flag for change in refused if change.flag is not None))
        hint = "undo the change" + (f", or accept the loss: {' '.join(flags)}" if flags else "")
        raise PlanError(f"this version of the app {what}:\n" + "\n".join(lines), hint=hint)


def to_text(changes: Changes) -> str:
    rows = [(change.verdict.value, change.what, change.why) for change in changes.notable]
    if not rows:
        return "the app's kept state hasn't changed"
    widths = [max(len(row[column]) for row in rows) for column in (0, 1)]
    return "\n".join(f"{verdict:<{widths[0]}}  {what:<{widths[1]}}  {why}".rstrip() for verdict, what, why in rows)


def to_json(changes: Changes) -> list[dict[str, str | None]]:
    return [
        {
            "verdict": change.verdict.value,
            "kind": change.kind,
            "id": change.id,
            "stage": change.stage,
            "why": change.why,
            "flag": change.flag if change.verdict is Verdict.REFUSED else None,
        }
        for change in changes.parts
    ]


def check_consent(consent: Consent, new: Inventory, before: Inventory) -> None:
    """Raise ``UsageError`` if an option of the user names an id that neither version of the app has."""
    now, then = new.ids(), before.ids()
    for id_ in sorted(consent.drop - now - then):
        known = ", ".join(sorted(now | then))
        raise UsageError(f"--drop-state {id_}: the app has nothing with this id", hint=f"it has {known}")
    for id_, old in sorted(consent.renamed.items()):
        if old not in then:
            raise UsageError(
                f"--rename {old}={id_}: the app had nothing with the id {old!r}",
                hint=f"it had {', '.join(sorted(then)) or 'nothing: it has never run'}",
            )
        if id_ not in now:
            hint = f"it has {', '.join(sorted(now))}"
            raise UsageError(f"--rename {old}={id_}: the app has nothing with the id {id_!r}", hint=hint)


def compare(new: Inventory, heritage: Heritage, stages: Sequence[str] = ()) -> Changes:
    """Compare an app, planned with this heritage, with its kept state; ``stages`` are those to run (default: all)."""
    found = [change for change in _compare(new, heritage) if not stages or change.stage in stages]
    if stages:
        found += _apart(new, heritage.inventory, stages)
    return _worst(found)


def _worst(found: Iterable[Change]) -> Changes:
    """Each part once, with its worst verdict: writers and readers of a stream each have it as a part."""
    order = list(Verdict)
    best: dict[tuple[str, str], Change] = {}
    for change in found:
        known = best.setdefault((change.kind, change.id), change)
        if order.index(change.verdict) > order.index(known.verdict):
            best[change.kind, change.id] = change
    return Changes(tuple(sorted(best.values(), key=lambda c: (order.index(c.verdict), c.stage, c.kind, c.id))))


@dataclass(frozen=True, slots=True)
class Answer:
    """What the system of an output says about this version's columns."""

    verdict: Verdict
    why: str = ""


def with_answers(changes: Changes, answers: Mapping[str, Answer]) -> Changes:
    """The changes with what the systems of outputs say, by the output's id, where that is no better."""
    order = list(Verdict)

    def heard(change: Change) -> Change:
        answer = answers.get(change.id) if change.kind == "target" else None
        if answer is None or order.index(answer.verdict) < order.index(change.verdict):
            return change
        why = "; ".join(words for words in (change.why, answer.why) if words)
        return replace(change, verdict=answer.verdict, why=why, flag=None, outside=True)

    return _worst(map(heard, changes.parts))


def _compare(new: Inventory, heritage: Heritage) -> Iterator[Change]:
    before = heritage.inventory
    streams = {part.id for _, part in new.parts() if part.kind == "stream"}
    for stage, part in new.parts():
        yield _judged(stage, part, heritage, new)
    for record in before.stages.values():
        yield from _left(record, new.stages.get(record.stage), new, heritage, streams)


def _judged(stage: StageRecord, part: Part, heritage: Heritage, new: Inventory) -> Change:
    def change(verdict: Verdict, why: str = "") -> Change:
        return _change(verdict, part, stage.stage, why)

    consent, inventory = heritage.consent, heritage.inventory
    id_ = consent.before(part.id, part.owner)
    record = inventory.stages.get(stage.stage)
    old = None if record is None else record.parts.get(id_)
    if part.kind == "stream":
        old = _same_side(inventory, id_, stage.stage, reads=part.reads) or inventory.stream(id_)
        if record is not None and not part.reads and part.kept_as in record.former:
            return change(Verdict.REFUSED, f"stage {stage.stage!r} has ended in it, and would write it again")
        reader = _reader(inventory, id_)
        if part.reads and reader not in (None, stage.stage) and not consent.drops(part.id, part.owner):
            return change(Verdict.REFUSED, _moves(reader, part, stage))
    if old is None or _family(old) != _family(part):
        elsewhere = _elsewhere(inventory, new, id_, part)
        if elsewhere is None:
            return change(Verdict.NEW, _WORDS[part.kind].again if part.kind in ("table", "step", "stream") else "")
        if consent.drops(part.id, part.owner):
            return change(Verdict.DROPPED, _WORDS[part.kind].again)
        return change(Verdict.REFUSED, _moves(elsewhere, part, stage))
    if consent.drops(part.id, part.owner):
        return change(Verdict.DROPPED, _WORDS[part.kind].again)
    if part.kind == "side input" and part.kept_as != old.kept_as:
        return change(Verdict.GROWN, "it is read again from its start, to fill its tables")
    return _weighed(old, part, change)


def _weighed(old: Part, part: Part, change: Callable[..., Change]) -> Change:
    differences = list(_differences(old, part))
    if differences:
        again = _WORDS[part.kind].again
        return change(Verdict.REFUSED, "; ".join(differences) + (f" (with --drop-state {again})" if again else ""))
    added = [name for name in part.columns if name not in old.columns]
    removed = [name for name in old.columns if name not in part.columns]
    words = [f"gains {', '.join(added)}"] if added else []
    words += [f"loses {', '.join(removed)}"] if removed else []
    if old.id != part.id:
        return change(Verdict.RENAMED, "; ".join([f"was {old.id!r}", *words]))
    return change(Verdict.GROWN, "; ".join(words)) if words else change(Verdict.KEPT)


def _differences(old: Part, new: Part) -> Iterator[str]:
    fixed = dict.fromkeys([*old.fixed, *new.fixed])
    fixed.pop("tables", None)  # it has its own rule: see Heritage
    fixed.pop(IDENTITY, None)
    before, now = old.fixed.get(IDENTITY), new.fixed.get(IDENTITY)
    if before and now and before != now:
        yield f"the stream was deleted and created again: its id was {before}, and is now {now}"
    for name in fixed:
        before, now = old.fixed.get(name), new.fixed.get(name)
        if before != now:
            yield f"{name} was {before or 'none'}, and is now {now or 'none'}"
    for name, before in old.columns.items():
        now = new.columns.get(name)
        if now is None and not new.sheds:
            yield f"column {name!r} is gone"
        elif now is not None and now != before:
            yield f"{name!r} was {before}, and is now {now}"


def _left(
    record: StageRecord, heir: StageRecord | None, new: Inventory, heritage: Heritage, streams: Iterable[str]
) -> Iterator[Change]:
    """The parts of a recorded stage that nothing in the new version takes over."""
    consent = heritage.consent
    taken = {(_family(part), consent.before(part.id, part.owner)) for _, part in new.parts()}
    kept_streams = {consent.before(id_, id_) for id_ in streams}
    for part in record.parts.values():
        if part.id in kept_streams if part.kind == "stream" else (_family(part), part.id) in taken:
            writes = heir is not None and any(p.kept_as == part.kept_as for p in heir.parts.values())
            if part.kind == "stream" and not part.reads and not writes and not consent.drops(part.id, part.owner):
                why = f"stage {record.stage!r} doesn't write it any more, and ends in it"
                yield _change(Verdict.ENDED, part, record.stage, why)
            continue
        if part.kind == "output":
            verdict, why = Verdict.ENDED, "nothing writes it any more"
        elif consent.drops(part.id, part.owner):
            verdict, why = Verdict.DROPPED, "it is gone"
        else:
            verdict, why = Verdict.REFUSED, f"it is gone, and {_WORDS[part.kind].loses}"
        yield _change(verdict, part, record.stage, why)


def _change(verdict: Verdict, part: Part, stage: str, why: str) -> Change:
    flag = f"--drop-state {part.owner}"
    return Change(verdict=verdict, kind=part.kind, id=part.id, owner=part.owner, stage=stage, why=why, flag=flag)


def _apart(new: Inventory, before: Inventory, stages: Sequence[str]) -> Iterator[Change]:
    """Changes of shared streams that stages running elsewhere don't know yet."""
    for record in before.stages.values():
        if record.stage in stages or record.stage not in new.stages:
            continue
        for part in record.parts.values():
            now = new.stages[record.stage].parts.get(part.id)
            if part.kind != "stream" or not part.reads or now is None:
                continue
            more = [name for name, count in now.writers.items() if name in stages and part.writers.get(name, 0) < count]
            if more:
                why = f"stage {record.stage!r} reads it, and runs a version that doesn't know {', '.join(more)}"
                why += f": start stage {record.stage!r} first, with this version"
                yield replace(_change(Verdict.REFUSED, part, record.stage, why), flag=None)


def _family(part: Part) -> str:
    """Parts of one family can follow each other. Targets and outputs are both outputs."""
    return {"target": "output", "side input": "input"}.get(part.kind, part.kind)


def _same_side(inventory: Inventory, id_: str, stage: str, *, reads: bool) -> Part | None:
    record = inventory.stages.get(stage)
    part = None if record is None else record.parts.get(id_)
    return part if part is not None and part.kind == "stream" and part.reads is reads else None


def _reader(inventory: Inventory, stream: str) -> str | None:
    """The stage that has read an intermediate stream, because only it knows its position."""
    parts = inventory.parts()
    return next((r.stage for r, part in parts if part.id == stream and part.kind == "stream" and part.reads), None)


def _moves(before: str | None, part: Part, stage: StageRecord) -> str:
    return f"it moves from stage {before!r} to {stage.stage!r}, and {_WORDS[part.kind].loses}"


def _elsewhere(before: Inventory, new: Inventory, id_: str, part: Part) -> str | None:
    """A stage that has kept this part, but no longer has it."""
    for record, old in before.parts():
        heir = new.stages.get(record.stage)
        moves = old.id == id_ and _family(old) == _family(part) and part.kind not in ("output", "stream")
        if moves and (heir is None or part.id not in heir.parts):
            return record.stage
    return None
