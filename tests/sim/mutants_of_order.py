"""Mistakes where flows of one input meet again: results would depend on where batches were cut."""

from __future__ import annotations

import numpy as np
import polars as pl
from mutant_kit import mutant, nothing

from headrace.task.operators import meetings
from headrace.task.operators.interval_join import JoinSide
from headrace.task.operators.meetings import Gate, MeetingPoint, Meetings, TracedPassage
from simulator.run import Parts


def order_mutant(name, says, *shapes, patches, first_seed=1):
    mutant(name, says, Parts(), *shapes, patches=patches, first_seed=first_seed)


order_mutant(
    "a batch goes whole into each branch",
    "nothing waits where flows meet",
    "app-feed",
    "app-split",
    patches=((Gate, "receive", lambda self, rows: self.after[0].receive(rows)),),
)


def as_collected(places):
    owner = np.repeat(np.arange(len(places)), [len(some) for some in places])
    return np.arange(len(owner)), owner


order_mutant(
    "one entry after the other",
    "what enters a meeting is taken in the order in which branches were followed",
    "app-split",
    "app-notes",
    patches=((meetings, "_order", as_collected),),
)


def numbered(self, entries):
    return pl.DataFrame({"0": np.arange(sum(rows.height for rows, _ in entries.values()))})


order_mutant(
    "one round for all keys",
    "messages of one key are in one round",
    "app-sums",
    "app-feed",
    patches=((MeetingPoint, "_keys", numbered),),
)


def unsorted(chunks):
    rows = meetings.concat_rows([chunk.rows for chunk in chunks])
    width = max(chunk.places.shape[1] for chunk in chunks)
    return rows, meetings._joined([chunk.places for chunk in chunks], width)


order_mutant(
    "rounds leave as they come",
    "what leaves a meeting stays in the order of rounds",
    "app-sums",
    "app-branches",
    patches=((meetings, "_sorted", unsorted),),
)


order_mutant(
    "ranks forgotten",
    "a pair counts as coming from the message that was handed over later",
    "app-branches",
    "app-outer-branches",
    patches=((JoinSide, "ranks_of", lambda self, ids: np.full(len(ids), -1)),),
)


SETTLE = Meetings.settle


def settled_downstream_first(self):
    self._points.reverse()
    SETTLE(self)
    self._points.reverse()


order_mutant(
    "downstream first",
    "a meeting takes what has entered before those upstream of it have let go",
    "app-notes",
    patches=((Meetings, "settle", settled_downstream_first),),
)


class Untold(TracedPassage):
    """A passage after which nobody knows from which rows results come."""

    __slots__ = ()

    def found(self):
        return None


order_mutant(
    "origins unknown",
    "a filter doesn't say which rows it has kept",
    "app-split",
    "app-feed",
    patches=((meetings, "TracedPassage", Untold),),
)

order_mutant(
    "nothing is let out",
    "what a meeting has made stays there",
    "app-sums",
    patches=((MeetingPoint, "settle", nothing),),
)
