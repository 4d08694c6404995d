"""Choose rows that are far enough apart in time: the core of ``deduplicate``, pure and vectorised.

The result is as if rows were visited one by one, and a row chosen unless an earlier chosen row of its group is too
near. Example: with distance 10, a group with the times 0, 4, 11, 15, 21 keeps 0, 11 and 21.

If the times of a group never decrease, the chosen rows are a walk: from each chosen row to the next one that is far
enough away. The walks of all such groups are done at once, by doubling the steps (``_walked``). Other groups need one
round for each row that they choose (``_by_rounds``).
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Indexes = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

_WIDEST = 1 << 62


def chosen_apart(groups: Indexes, times: Indexes, distance: int) -> Mask:
    """A mask of the chosen rows. Each is at least ``distance`` away from all rows of its group chosen before it."""
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
    if span * (len(group) + 1) > _WIDEST:  # group and time don't fit into one number
        rising[:] = False
    chosen[order[rising]] = _walked(number[rising], time[rising], begins[rising], distance, span)
    rest = ~rising
    chosen[order[rest][_by_rounds(number[rest], time[rest], distance)]] = True
    return chosen


def _walked(number: Indexes, time: Indexes, begins: Mask, distance: int, span: int) -> Mask:
    """The mask for groups whose times never decrease.

    ``line`` holds group and time as one ascending number, with more than ``distance`` between groups. So the walk
    continues from the last chosen row of a group to the first row of the next. ``step[i]`` is the row that the walk
    visits after row i. ``reached`` begins with the first rows of all groups. Each round adds the rows that are one step
    away from those reached so far, and doubles the step: after n rounds the first 2^n rows of every walk are reached.
    """
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
    """The chosen rows, by position: each round takes the first remaining row of every group, and drops rows near it."""
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
