"""Count distinct values approximately: a HyperLogLog, kept as the list of its registers that aren't zero.

The durable hash of a value selects one of 4096 registers and gives a *rank*: the number of leading zeros of the other
bits, plus one. A register keeps the highest rank. It is one UInt32, ``register * 64 + rank``, so few values need few
bytes, and two sketches are merged by keeping the highest code of each register. For example, the codes 5*64+1, 5*64+3
and 9*64+2 become the sketch [9*64+2, 5*64+3]. The estimate is Ertl's ("New cardinality estimation algorithms for
HyperLogLog sketches", 2017), which needs no correction for small counts. Its standard error is 1.6 %, which is
1.04 / sqrt(4096).

Codes are in changelogs: how they are computed must not change. Pure, vectorised.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import polars as pl

from headrace.serdes.hashing import hash_rows

_PRECISION = 12
_REGISTERS = 1 << _PRECISION
_RANK_BITS = 6
_RANKS = 1 << _RANK_BITS
_HASH_BITS = 52
"""The bits of the hash that give the rank: as many as a float can hold exactly."""
_ALPHA = 1 / (2 * np.log(2))

Floats = npt.NDArray[np.float64]


def register_codes(values: pl.Series) -> pl.Series:
    """The code of each value, its register and rank; null for null."""
    hashes = hash_rows(values.to_frame("value"), ["value"])
    register = (hashes >> np.uint64(_HASH_BITS)).astype(np.uint32)
    rest = (hashes & np.uint64((1 << _HASH_BITS) - 1)).astype(np.float64)
    rank = (_HASH_BITS + 1 - np.frexp(rest)[1]).astype(np.uint32)  # frexp of 0 has the exponent 0
    found = pl.Series(values.name, (register << np.uint32(_RANK_BITS)) | rank)
    if values.null_count():
        return found.zip_with(values.is_not_null(), pl.Series(values.name, [None], pl.UInt32))
    return found


def highest_codes(found: pl.Expr) -> pl.Expr:
    """The highest code of each register, from codes in any order."""
    ordered = found.drop_nulls().sort(descending=True)
    register = ordered // _RANKS
    return ordered.filter(register.ne_missing(register.shift(1)))


def estimated_count(sketches: pl.Series) -> pl.Series:
    """The estimated number of distinct values of each sketch."""
    if not len(sketches):
        return pl.Series(sketches.name, [], pl.Int64)
    lengths = sketches.list.len().to_numpy()
    ranks = sketches.list.explode(keep_nulls=False, empty_as_null=False).to_numpy() % _RANKS
    owner = np.repeat(np.arange(len(sketches)), lengths)
    counts = np.bincount(owner * _RANKS + ranks, minlength=len(sketches) * _RANKS)
    counts = counts.reshape(len(sketches), _RANKS).astype(np.float64)
    counts[:, 0] = _REGISTERS - lengths
    z = _REGISTERS * _tau(1 - counts[:, _HASH_BITS + 1] / _REGISTERS)
    for rank in range(_HASH_BITS, 0, -1):
        z = 0.5 * (z + counts[:, rank])
    z = z + _REGISTERS * _sigma(counts[:, 0] / _REGISTERS)
    with np.errstate(divide="ignore"):
        result = np.where(np.isinf(z), 0.0, _ALPHA * _REGISTERS * _REGISTERS / z)
    return pl.Series(sketches.name, np.rint(result).astype(np.int64))


def _sigma(share: Floats) -> Floats:
    """Ertl's sigma, the term of the empty registers; infinite if all are empty."""
    all_empty = share >= 1.0
    x = np.where(all_empty, 0.0, share)
    y, z = np.ones_like(x), x.copy()
    while True:
        x = x * x
        before = z
        z = z + x * y
        y = y + y
        if np.array_equal(before, z):
            return np.where(all_empty, np.inf, z)


def _tau(share: Floats) -> Floats:
    """What registers of the highest rank subtract."""
    trivial = (share <= 0.0) | (share >= 1.0)
    x = np.where(trivial, 0.5, share)
    y, z = np.ones_like(x), 1 - x
    while True:
        x = np.sqrt(x)
        before = z
        y = 0.5 * y
        z = z - (1 - x) ** 2 * y
        if np.array_equal(before, z):
            return np.where(trivial, 0.0, z / 3)
