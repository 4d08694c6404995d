"""Choosing rows that are far enough apart: the core of ``deduplicate``, pure and vectorised.

Rows are looked at one after the other; a row is chosen unless one of its group that was chosen before is too near.
Where the times of a group don't fall, that is a walk from each chosen row to the next that is far enough, and all
groups' walks are done together by doubling the steps. Other groups take a round for each row they choose.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Indexes = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

_WIDEST = 1 << 62


def chosen_apart(groups: Indexes, times: Indexes, distance: int) -> Mask:
    """Which rows are chosen: each is ``distance`` or more away from all of its group that were chosen before it."""
    chosen = np.zeros(len(groups), np.bool_)
    order = np.argsort(groups, kind="stable")
    group, time = groups[order], times[order]
    begins = np.ones(len(group), np.bool_)
    begins[1:] = group[1:] != group[:-1]
    number = np.cumsum(begins) - 1
    falls = np.zeros(len(group), np.bool_)
    falls[1:] = (time[1:] < time[:-1]) & ~begins[1:]
    rising = ~np.isin(number, number[falls])
    span = int(time.max()) - int(time.min()) + distance + 1 if len(time) else 0
    if span * (len(group) + 1) > _WIDEST:  # no room to write group and time as one number
        rising[:] = False
    chosen[order[rising]] = _walked(number[rising], time[rising], begins[rising], distance, span)
    rest = ~rising
    chosen[order[rest][_by_rounds(number[rest], time[rest], distance)]] = True
    return chosen


def _walked(number: Indexes, time: Indexes, begins: Mask, distance: int, span: int) -> Mask:
    """The chosen of groups whose times don't fall. From the last one of a group the walk goes on to the next group."""
    count = len(number)
    if not count:
        return begins
    line = number * span + (time - time.min())
    step = np.append(np.searchsorted(line, line + distance), count)
    reached = np.append(begins, True)
    while True:
        further = step[np.flatnonzero(reached)]
        if reached[further].all():
            return reached[:count]
        reached[further] = True
        step = step[step]


def _by_rounds(number: Indexes, time: Indexes, distance: int) -> Indexes:
    """The places of the chosen: in each round the first that is left of every group; what is near it is out."""
    rounds = [np.empty(0, np.int64)]
    left = np.arange(len(number))
    while len(left):
        first = np.ones(len(left), np.bool_)
        first[1:] = number[left[1:]] != number[left[:-1]]
        firsts = left[first]
        rounds.append(firsts)
        near = np.abs(time[left] - time[firsts[np.cumsum(first) - 1]]) < distance
        left = left[~near]
    return np.concatenate(rounds)
