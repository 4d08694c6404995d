"""The functions of SQL as a table: what each takes and gives, and how Polars computes what Spark does. Pure.

A function says what it takes by a letter for each argument. As expressions: ``s`` text, ``c`` what becomes text, ``n``
a number as a double, ``i`` a whole number, ``b`` a condition, ``t`` a time, ``d`` a date, ``a`` an array, ``x``
anything; ``v`` is a ``Value``. What must be constant comes as a value of Python: ``S`` text, ``I`` a whole number,
``R`` a regular expression, ``F`` a pattern of times, ``U`` a word. ``?``: what follows may be left out. ``*``: the last
may be repeated. ``!``: it raises for some values, so it is computed only for rows that reach it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import polars as pl
from polars.exceptions import ComputeError


@dataclass(frozen=True, slots=True)
class Value:
    """A Polars expression and the type of its results."""

    expr: pl.Expr
    dtype: pl.DataType


@dataclass(frozen=True, slots=True)
class Rule:
    """A function: the letters of its arguments, the type that it gives (None: what comes out), and how it is computed.

    ``to`` raises ``ValueError`` if it can't do what its constants ask for.
    """

    takes: str
    gives: pl.DataType | None
    to: Callable[..., pl.Expr]


TEXT, BOOL, DATE = pl.String(), pl.Boolean(), pl.Date()
INT, LONG, DOUBLE = pl.Int32(), pl.Int64(), pl.Float64()
TIME = pl.Datetime("us")
KINDS = {
    "s": "text",
    "c": "text",
    "n": "a number",
    "i": "a whole number",
    "b": "true or false",
    "t": "a timestamp",
    "d": "a date",
    "a": "an array",
}
CASTS = {"s": TEXT, "c": TEXT, "n": DOUBLE, "i": LONG, "b": pl.Boolean(), "t": TIME, "d": DATE}
"""What the letters mean, and the types of these arguments."""
MICROS = {"microsecond": 1, "millisecond": 1000, "second": 10**6, "minute": 60 * 10**6, "hour": 3600 * 10**6}
MICROS |= {"day": 86400 * 10**6, "week": 7 * 86400 * 10**6}
MONTHS = {"month": 1, "quarter": 3, "year": 12}
_TRUNCATED = {"year": "1y", "quarter": "1q", "month": "1mo", "week": "1w", "day": "1d", "hour": "1h", "minute": "1m"}
_TRUNCATED |= {"second": "1s", "millisecond": "1ms", "microsecond": "1us"}
_SHORT = {"yyyy": "year", "yy": "year", "mon": "month", "mm": "month", "dd": "day"}
_WEEKDAYS = ("MO", "TU", "WE", "TH", "FR", "SA", "SU")


def refuse(where: pl.Expr, value: pl.Expr, what: str, gives: pl.DataType) -> pl.Expr:
    """``value``, unless the condition is true anywhere: that stops the app."""
    return pl.map_batches([value, where], partial(_refused, what), return_dtype=gives, is_elementwise=True)


def _refused(what: str, both: Sequence[pl.Series]) -> pl.Series:
    if both[1].any():
        raise ComputeError(what)
    return both[0]


# -- types -------------------------------------------------------------------------------------------
_DIGITS: Mapping[pl.DataType, int] = {pl.Int8(): 3, pl.Int16(): 5, INT: 10, LONG: 20}
_SIZES = (pl.Int8(), pl.Int16(), INT, LONG)


def digits_of(dtype: pl.DataType) -> tuple[int, int]:
    """Precision and scale of a number as a decimal."""
    return (dtype.precision, dtype.scale) if isinstance(dtype, pl.Decimal) else (_DIGITS.get(_signed(dtype), 20), 0)


def wider(one: pl.DataType, two: pl.DataType) -> pl.DataType | None:
    """The type that values of both become when they meet, as in Spark; None if there is none."""
    if pl.Null in (one, two):
        return two if one == pl.Null else one
    if one.is_integer() and two.is_integer():
        return max((_signed(one), _signed(two)), key=_SIZES.index)
    if one.is_numeric() and two.is_numeric():
        if one.is_float() or two.is_float():
            return one if one == two else DOUBLE
        (ours, of_ours), (theirs, of_theirs) = digits_of(one), digits_of(two)
        scale = max(of_ours, of_theirs)
        return pl.Decimal(min(max(ours - of_ours, theirs - of_theirs) + scale, 38), scale)
    if isinstance(one, pl.Datetime | pl.Date) and isinstance(two, pl.Datetime | pl.Date):
        units = [dtype.time_unit for dtype in (one, two) if isinstance(dtype, pl.Datetime)]
        return pl.Datetime(max(units, key=("ms", "us", "ns").index)) if units else DATE
    for text, other in ((one, two), (two, one)):
        if text == TEXT and isinstance(other, pl.Datetime | pl.Date):
            return other
    return one if one == two else None


def _signed(dtype: pl.DataType) -> pl.DataType:
    signed: Mapping[pl.DataType, pl.DataType] = {pl.UInt8(): pl.Int16(), pl.UInt16(): INT}
    return dtype if dtype in _SIZES or not dtype.is_integer() else signed.get(dtype, LONG)


def quotient(one: pl.Expr, two: pl.Expr) -> pl.Expr:
    """A division of doubles; Polars multiplies with the reciprocal of a constant, and misses the last digit."""
    return pl.map_batches([one, two], _divided, return_dtype=DOUBLE, is_elementwise=True)


def _divided(both: Sequence[pl.Series]) -> pl.Series:
    with np.errstate(all="ignore"):
        values = pl.Series(both[0].name, both[0].to_numpy() / both[1].to_numpy())
    if not both[0].null_count() and not both[1].null_count():
        return values
    return pl.select(pl.when(pl.lit(both[0].is_not_null() & both[1].is_not_null())).then(pl.lit(values))).to_series()


# -- patterns ----------------------------------------------------------------------------------------
_CLASSES = {"d": "0-9", "w": "0-9A-Za-z_", "s": r" \t\n\x0B\f\r"}


def rust_regex(java: str) -> str:
    """A regular expression of Java in Rust's words: ``\\d``, ``\\w``, ``\\s`` and ``\\b`` mean ASCII, as in Java."""
    found, inside, place = [], 0, 0
    while place < len(java):
        char = java[place]
        if char == "\\" and place + 1 < len(java):
            found.append(_rust_escape(java[place + 1], inside > 0))
            place += 2
            continue
        inside += (char == "[") - (char == "]" and inside > 0)
        found.append("[^\\n\\r\\x{85}\\x{2028}\\x{2029}]" if char == "." and not inside else char)
        place += 1
    regex = "".join(found)
    if re.search(r"(?<!\\)[*+?}]\+", java):
        raise ValueError("a possessive quantifier (++) isn't supported in regular expressions")
    try:
        pl.Series([""]).str.contains(regex)
    except ComputeError as error:
        raise ValueError(f"the regular expression {java!r} isn't supported: {_last_line(error)}") from None
    return regex


def _rust_escape(char: str, inside: bool) -> str:
    kind = _CLASSES.get(char.lower())
    if kind is not None:
        negated = "^" if char.isupper() else ""
        return kind if inside and not negated else f"[{negated}{kind}]"
    return f"(?-u:\\{char})" if char == "b" else f"\\{char}"


def _last_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines()]
    return next((line.removeprefix("error: ") for line in lines if line.startswith("error:")), lines[0])


def like_regex(pattern: str, escape: str, *, any_case: bool) -> str:
    """The regular expression of a LIKE pattern."""
    found, place = [], 0
    while place < len(pattern):
        char = pattern[place]
        if char == escape:
            place += 1
            if place == len(pattern) or pattern[place] not in ("%", "_", escape):
                raise ValueError(f"{escape!r} in a LIKE pattern stands before %, _ or itself")
            found.append(re.escape(pattern[place]))
        else:
            found.append({"%": ".*", "_": "."}.get(char) or re.escape(char))
        place += 1
    return f"(?s{'i' if any_case else ''})^{''.join(found)}$"


@dataclass(frozen=True, slots=True)
class Pattern:
    """A pattern of times: chrono's, and a regular expression of the texts that Spark takes by it."""

    chrono: str
    regex: str
    added: str
    """What follows a text so that chrono knows all: Spark takes the first of what is missing."""


_PIECES: Mapping[str, tuple[str, str]] = {
    "yyyy": ("%Y", r"\d{4}"),
    "yy": ("%y", r"\d{2}"),
    "MM": ("%m", r"\d{2}"),
    "M": ("%-m", r"\d{1,2}"),
    "MMM": ("%b", "[A-Z][a-z]{2}"),
    "MMMM": ("%B", "[A-Z][a-z]+"),
    "dd": ("%d", r"\d{2}"),
    "d": ("%-d", r"\d{1,2}"),
    "D": ("%-j", r"\d{1,3}"),
    "DDD": ("%j", r"\d{3}"),
    "HH": ("%H", r"\d{2}"),
    "H": ("%-H", r"\d{1,2}"),
    "hh": ("%I", r"\d{2}"),
    "h": ("%-I", r"\d{1,2}"),
    "mm": ("%M", r"\d{2}"),
    "m": ("%-M", r"\d{1,2}"),
    "ss": ("%S", r"\d{2}"),
    "s": ("%-S", r"\d{1,2}"),
    "SSS": ("%3f", r"\d{3}"),
    "SSSSSS": ("%6f", r"\d{6}"),
    "a": ("%p", "[AP]M"),
    "E": ("%a", ""),
    "EE": ("%a", ""),
    "EEE": ("%a", ""),
    "EEEE": ("%A", ""),
}
"""By a piece of Spark's patterns. What has no regular expression is for writing only."""


def time_pattern(java: str) -> Pattern:
    """Spark's pattern of times in chrono's words."""
    chrono, regex, seen = [], [], ""
    for quoted, letters, _, other in re.findall(r"'((?:[^']|'')*)'|(([A-Za-z])\3*)|([^A-Za-z'])", java):
        if letters:
            if letters not in _PIECES:
                known = ", ".join(_PIECES)
                raise ValueError(f"{letters!r} in the pattern {java!r} isn't supported; there are {known}")
            chrono.append(_PIECES[letters][0])
            regex.append(_PIECES[letters][1] or "(?:never)")
            seen += letters
        else:
            text = other or quoted.replace("''", "'") or "'"
            chrono.append(text.replace("%", "%%"))
            regex.append(re.escape(text))
    added = "".join(
        f"|{default}|%{code}"
        for letters, default, code in (("y", "1970", "Y"), ("MD", "01", "m"), ("dD", "01", "d"), ("m", "00", "M"))
        if not set(letters) & set(seen) and (letters != "m" or set("Hh") & set(seen))
    )
    return Pattern("".join(chrono), f"^{''.join(regex)}$", added)


def read_time(text: pl.Expr, pattern: Pattern, *, strict: bool) -> pl.Expr:
    """Times from texts of a pattern; another text is an error, or null."""
    added = re.findall(r"\|([^|]+)\|([^|]+)", pattern.added)
    rest, codes = "".join(f"|{one}" for one, _ in added), "".join(f"|{code}" for _, code in added)
    fits = pl.when(text.str.contains(pattern.regex)).then(text + pl.lit(rest))
    whole = fits.otherwise(pl.lit("not of this pattern: ") + text if strict else pl.lit(None, TEXT))
    return whole.str.to_datetime(pattern.chrono + codes, time_unit="us", strict=strict)


_DATE_TEXT = r"^\s*(\d{4})(?:-(\d{1,2})(?:-(\d{1,2})(?:[ T].*)?)?)?\s*$"
_TIME_TEXT = (
    r"^\s*(\d{4})(?:-(\d{1,2})(?:-(\d{1,2})(?:[ T](\d{1,2}):(\d{1,2})(?::(\d{1,2})(?:\.(\d{0,6})\d*)?)?"
    r"(Z|[+-]\d{2}:\d{2})?)?)?)?\s*$"
)


def date_of_text(text: pl.Expr, *, strict: bool) -> pl.Expr:
    """``CAST(text AS DATE)``."""
    usual = pl.when(text.str.contains(r"^\d{4}-\d{2}-\d{2}$")).then(text).str.to_date("%Y-%m-%d", strict=False)
    return pl.coalesce(usual, _others(pl.when(usual.is_null()).then(text), _any_date, DATE, strict=strict))


def _others(text: pl.Expr, read: Callable[..., pl.Expr], gives: pl.DataType, *, strict: bool) -> pl.Expr:
    """Texts that are rare, and slow to read."""
    return text.map_batches(partial(_read_others, read, gives, strict), return_dtype=gives, is_elementwise=True)


def _read_others(read: Callable[..., pl.Expr], gives: pl.DataType, strict: bool, texts: pl.Series) -> pl.Series:
    if texts.null_count() == texts.len():
        return pl.Series(dtype=gives).extend_constant(None, texts.len())
    return texts.to_frame("x").select(read(pl.col("x"), strict=strict)).to_series()


def _any_date(text: pl.Expr, *, strict: bool) -> pl.Expr:
    part = text.str.extract_groups(_DATE_TEXT).struct
    whole = pl.concat_str(part.field("1"), _two(part, "2", "01"), _two(part, "3", "01"), separator="-")
    return _read_or_raw(whole, text, strict=strict).str.to_date("%Y-%m-%d", strict=strict)


def time_of_text(text: pl.Expr, *, strict: bool) -> pl.Expr:
    """``CAST(text AS TIMESTAMP)``, in UTC."""
    common = pl.when(text.str.contains(r"^\d{4}-\d{2}-\d{2} \d{2}:\d{2}:[0-5]\d(\.\d{1,6})?$")).then(text)
    usual = common.str.to_datetime("%Y-%m-%d %H:%M:%S%.f", time_unit="us", strict=False)
    return pl.coalesce(usual, _others(pl.when(usual.is_null()).then(text), _any_time, TIME, strict=strict))


def _any_time(text: pl.Expr, *, strict: bool) -> pl.Expr:
    part = text.str.extract_groups(_TIME_TEXT).struct
    day = pl.concat_str(part.field("1"), _two(part, "2", "01"), _two(part, "3", "01"), separator="-")
    time = pl.concat_str(*(_two(part, number, "00") for number in "456"), separator=":")
    micros, zone = part.field("7").fill_null("").str.pad_end(6, "0"), part.field("8").fill_null("Z")
    whole = pl.concat_str(day, pl.lit(" "), time, pl.lit("."), micros, zone.replace("Z", "+00:00"))
    read = _read_or_raw(whole, text, strict=strict).str.to_datetime(
        "%Y-%m-%d %H:%M:%S.%6f%z", time_unit="us", time_zone="UTC", strict=strict
    )
    return read.dt.replace_time_zone(None)


def _two(part: pl.expr.struct.ExprStructNameSpace, name: str, missing: str) -> pl.Expr:
    return part.field(name).fill_null(missing).str.zfill(2)


def _read_or_raw(whole: pl.Expr, text: pl.Expr, *, strict: bool) -> pl.Expr:
    return pl.when(whole.is_not_null()).then(whole).otherwise(text if strict else pl.lit(None, TEXT))


def in_utc(time: pl.Expr) -> pl.Expr:
    """A time with a zone, as one without."""
    return time.dt.convert_time_zone("UTC").dt.replace_time_zone(None)


def text_of_time(time: pl.Expr) -> pl.Expr:
    """``CAST(timestamp AS STRING)``: a fraction without zeros at its end."""
    return time.dt.strftime("%Y-%m-%d %H:%M:%S.%6f").str.strip_chars_end("0").str.strip_chars_end(".")


_TRUE = ("t", "true", "y", "yes", "1")
_FALSE = ("f", "false", "n", "no", "0")


def read_text(text: pl.Expr, to: pl.DataType, *, strict: bool) -> pl.Expr:
    """Text as another type."""
    if isinstance(to, pl.Date):
        return date_of_text(text, strict=strict)
    if isinstance(to, pl.Datetime):
        return time_of_text(text, strict=strict).cast(to)
    if to in (TEXT, pl.Binary()):
        return text.cast(to)
    text = text.str.strip_chars()
    if to == pl.Boolean:
        text = text.str.to_lowercase()
        if strict:
            other = ~text.is_in([*_TRUE, *_FALSE])
            text = refuse(other, text, "a text is neither true nor false: write TRY_CAST to get null", TEXT)
        return pl.when(text.is_in(list(_TRUE))).then(pl.lit(True)).when(text.is_in(list(_FALSE))).then(pl.lit(False))
    if isinstance(to, pl.Decimal):
        cut = text.str.replace(rf"^([+-]?\d*\.\d{{{to.scale + 1}}})\d+$", "${1}")
        wide = cut.cast(pl.Decimal(38, min(to.scale + 1, 38)), strict=strict)
        return wide.round(to.scale, mode="half_away_from_zero").cast(to, strict=strict)
    return text.cast(to, strict=strict)


# -- text --------------------------------------------------------------------------------------------
def _padded(text: pl.Expr, size: int, fill: str, *, left: bool) -> pl.Expr:
    size = max(size, 0)
    pad = pl.lit((fill * size)[:size]).str.head((size - text.str.len_chars().cast(LONG)).clip(0))
    return pl.concat_str(pad, text.str.head(size)) if left else pl.concat_str(text.str.head(size), pad)


def _position(text: pl.Expr, part: pl.Expr, start: int = 1) -> pl.Expr:
    if start < 1:
        return pl.when(text.is_not_null() & part.is_not_null()).then(0)
    tail = text.str.slice(start - 1)
    before = tail.str.split(part).list.first().str.len_chars().cast(LONG) + start
    found = pl.when(part == "").then(1).when(tail.str.contains(part, literal=True)).then(before)
    return found.when(tail.is_not_null() & part.is_not_null()).then(0)


def _initial_capitals(text: pl.Expr) -> pl.Expr:
    word = pl.element()
    capital = word.str.head(1).str.to_uppercase() + word.str.slice(1).str.to_lowercase()
    return text.str.split(" ").list.eval(capital).list.join(" ")


def _repeated(text: pl.Expr, times: pl.Expr) -> pl.Expr:
    known = text.is_not_null() & times.is_not_null()
    return pl.when(known).then(text.repeat_by(times.clip(0)).list.join(""))


def _split(text: pl.Expr, by: str, limit: int = -1) -> pl.Expr:
    """The separator is a regular expression of one text: ``,`` or ``[.]``."""
    quoted = re.compile(r"\\([^A-Za-z0-9])|\[([^\\^\]])\]")
    if limit > 0 or not by or re.search(r"[\\.^$|?*+()\[\]{}]", quoted.sub("", by)):
        raise ValueError("SPLIT takes a separator of plain characters, and no limit")
    return text.str.split(quoted.sub(lambda found: found[1] or found[2], by))


def _split_part(text: pl.Expr, by: str, number: int) -> pl.Expr:
    if number == 0:
        raise ValueError("the parts of SPLIT_PART begin with 1")
    parts = text.str.split(by) if by else pl.concat_list(text)
    part = parts.list.get(number - 1 if number > 0 else number, null_on_oob=True)
    return pl.when(text.is_not_null()).then(part.fill_null(""))


def _up_to(text: pl.Expr, by: str, count: int) -> pl.Expr:
    if not by or not count:
        return pl.when(text.is_not_null()).then(pl.lit(""))
    parts = text.str.split(by).list
    return (parts.head(count) if count > 0 else parts.tail(-count)).list.join(by)


def _substring(text: pl.Expr, start: pl.Expr, length: pl.Expr | None = None) -> pl.Expr:
    size = text.str.len_chars().cast(LONG)
    begin = pl.when(start > 0).then(start - 1).when(start < 0).then(size + start).otherwise(0)
    end = size if length is None else begin + length
    cut = text.str.slice(begin.clip(0), (end - begin.clip(0)).clip(0))
    known = start.is_not_null() if length is None else start.is_not_null() & length.is_not_null()
    return pl.when(known).then(cut)


def _overlaid(text: pl.Expr, part: pl.Expr, start: int, length: int = -1) -> pl.Expr:
    if start < 1:
        raise ValueError("OVERLAY begins at a place of at least 1")
    taken = part.str.len_chars().cast(LONG) if length < 0 else pl.lit(length, LONG)
    return pl.concat_str(text.str.head(start - 1), part, text.str.slice(taken + (start - 1)))


def _translated(text: pl.Expr, old: str, new: str) -> pl.Expr:
    table = {char: new[place : place + 1] for place, char in reversed(list(enumerate(old)))}
    return text.str.replace_many(list(table), list(table.values())) if table else text


def _replaced(text: pl.Expr, regex: str, by: str) -> pl.Expr:
    if re.search(r"\$(?!\d)", by.replace(r"\$", "")):
        raise ValueError(r"$ in a replacement stands before the number of a group; write \$ for the sign")
    rust = re.sub(r"\\\$|\$(\d)|\\(.)", lambda m: "$$" if m[0] == r"\$" else f"${{{m[1]}}}" if m[1] else m[2], by)
    return text.str.replace_all(regex, rust)


def _all_matches(text: pl.Expr, regex: str, group: int) -> pl.Expr:
    if group:
        raise ValueError("REGEXP_EXTRACT_ALL takes whole matches: give 0 as the group")
    return text.str.extract_all(regex)


def _json(text: pl.Expr, path: str) -> pl.Expr:
    if not re.fullmatch(r"\$(\.\w+|\[\d+\]|\['[^']*'\])*", path):
        raise ValueError(f"the path {path!r} isn't supported; there are $.name, ['name'] and [0]")
    return text.str.json_path_match(path)


# -- numbers -----------------------------------------------------------------------------------------
def half_up(number: pl.Expr, digits: int, *, even: bool = False) -> pl.Expr:
    """A double, rounded by its decimal digits as they are written: 2.675 to 2.68, whose bits are below the half."""
    size = pl.lit(float(10 ** abs(digits)))
    low = ((number.abs() * size) if digits >= 0 else quotient(number.abs(), size)).floor()
    half = quotient(low + 0.5, size) if digits >= 0 else (low + 0.5) * size
    up = number.abs() >= half
    if even:
        up = (number.abs() > half) | ((number.abs() == half) & (low % 2 == 1))
    whole = pl.when(up).then(low + 1).otherwise(low)
    rounded = (quotient(whole, size) if digits >= 0 else whole * size) * number.sign()
    coarse = (low < 2.0**52) & number.is_finite()  # others have no digits there
    return pl.when(coarse).then(rounded).otherwise(number)


def _round(number: Value, digits: int = 0, *, even: bool = False) -> pl.Expr:
    if number.dtype.is_integer() and digits >= 0:
        return number.expr
    if isinstance(number.dtype, pl.Decimal) and digits >= 0:
        scale = min(number.dtype.scale, digits)
        precision = min(number.dtype.precision - number.dtype.scale + 1 + scale, 38)
        rounded = number.expr.round(scale, mode="half_to_even" if even else "half_away_from_zero")
        return rounded.cast(pl.Decimal(precision, scale))
    if number.dtype.is_float():
        return half_up(number.expr, digits, even=even).cast(number.dtype)
    raise ValueError(f"{number.dtype} can't be rounded to {digits} digits; write CAST(... AS DOUBLE)")


def _whole(number: Value, *, up: bool) -> pl.Expr:
    whole = number.expr.ceil() if up else number.expr.floor()
    if isinstance(number.dtype, pl.Decimal):
        return whole.cast(pl.Decimal(min(number.dtype.precision - number.dtype.scale + 1, 38), 0))
    return number.expr.cast(LONG) if number.dtype.is_integer() else whole.cast(LONG)


def remainder(one: pl.Expr, by: pl.Expr) -> pl.Expr:
    """The remainder has the sign of the dividend, as in Spark; Polars' has that of the divisor."""
    rest = one % by
    return pl.when((rest != 0) & ((rest < 0) != (one < 0))).then(rest - by).otherwise(rest)


def _log(base: pl.Expr, number: pl.Expr) -> pl.Expr:
    return pl.when((base > 0) & (number > 0)).then(number.log() / base.log())


def _shift(number: Value, by: int, *, left: bool) -> pl.Expr:
    most, dtype = (62, LONG) if number.dtype == LONG else (30, INT)
    if not number.dtype.is_integer() or not 0 <= by <= most:
        raise ValueError(f"a whole number is shifted, by 0 to {most} bits")
    factor = pl.lit(1 << by, dtype)
    return number.expr.cast(dtype) * factor if left else number.expr.cast(dtype) // factor


def _bits(number: Value) -> pl.Expr:
    if not number.dtype.is_integer():
        raise ValueError("bits are counted of whole numbers")
    return number.expr.cast(LONG).bitwise_count_ones()


def _above(number: pl.Expr, above: float, log: pl.Expr) -> pl.Expr:
    """A logarithm, null where there is none."""
    return pl.when(number > above).then(log)


_OF_DOUBLES: Mapping[str, Callable[[pl.Expr], pl.Expr]] = {
    "acos": lambda x: x.arccos(),
    "asin": lambda x: x.arcsin(),
    "atan": lambda x: x.arctan(),
    "cbrt": lambda x: x.cbrt(),
    "cos": lambda x: x.cos(),
    "cosh": lambda x: x.cosh(),
    "degrees": lambda x: x.degrees(),
    "exp": lambda x: x.exp(),
    "ln": lambda x: _above(x, 0, x.log()),
    "log10": lambda x: _above(x, 0, x.log10()),
    "log1p": lambda x: _above(x, -1, x.log1p()),
    "log2": lambda x: _above(x, 0, x.log(2)),
    "radians": lambda x: x.radians(),
    "sign": lambda x: x.sign(),
    "sin": lambda x: x.sin(),
    "sinh": lambda x: x.sinh(),
    "sqrt": lambda x: x.sqrt(),
    "tan": lambda x: x.tan(),
    "tanh": lambda x: x.tanh(),
}


# -- times -------------------------------------------------------------------------------------------
def micros_of(time: pl.Expr) -> pl.Expr:
    """Microseconds since 1970."""
    return time.cast(TIME).cast(LONG)


def moved(time: pl.Expr, number: pl.Expr, unit: str) -> pl.Expr:
    """A time some months later, at most at the month's end."""
    return time.dt.offset_by((number.cast(LONG) * MONTHS[unit]).cast(TEXT) + "mo")


def _added(unit: str, number: pl.Expr, time: pl.Expr) -> pl.Expr:
    unit = _unit(unit)
    if unit in MONTHS:
        return moved(time.cast(TIME), number, unit)
    return (micros_of(time) + number * MICROS[unit]).cast(TIME)


def _apart(unit: str, first: pl.Expr, last: pl.Expr) -> pl.Expr:
    """Whole units from one time to another, towards zero."""
    unit = _unit(unit)
    size, begin, end = MICROS.get(unit, 1), micros_of(first), micros_of(last)
    if unit in MONTHS:  # months of 32 days: a month is whole if its day and its time of day are reached
        begin, end, size = _in_long_months(first), _in_long_months(last), 32 * MICROS["day"]
    whole = towards_zero(end - begin, size)
    return towards_zero(whole, MONTHS[unit]) if unit in MONTHS else whole


def _in_long_months(time: pl.Expr) -> pl.Expr:
    months = time.dt.year().cast(LONG) * 12 + time.dt.month()
    return (months * 32 + time.dt.day()) * MICROS["day"] + micros_of(time) % MICROS["day"]


def towards_zero(number: pl.Expr, by: int) -> pl.Expr:
    """A whole number, divided without its rest."""
    return pl.when(number < 0).then(-(-number // by)).otherwise(number // by)


def _unit(word: str) -> str:
    unit = word.lower()
    unit = _SHORT.get(unit, unit)
    unit = unit if unit in MICROS or unit in MONTHS else unit.removesuffix("s")
    if unit not in MICROS and unit not in MONTHS:
        raise ValueError(f"the unit {word} isn't supported; there are {', '.join((*MICROS, *MONTHS))}")
    return unit


def _truncated(time: pl.Expr, unit: str) -> pl.Expr:
    return time.dt.truncate(_TRUNCATED[_unit(unit)])


def _truncated_date(unit: str, date: pl.Expr) -> pl.Expr:
    if _unit(unit) not in (*MONTHS, "week"):
        raise ValueError("TRUNC is to a year, quarter, month or week; write DATE_TRUNC for times")
    return _truncated(date, unit)


def _next_day(date: pl.Expr, name: str) -> pl.Expr:
    day = name[:2].upper()
    if day not in _WEEKDAYS:
        raise ValueError(f"{name!r} is no day of the week")
    ahead = (pl.lit(_WEEKDAYS.index(day), INT) - date.dt.weekday().cast(INT)) % 7 + 1
    return (date.cast(INT) + ahead).cast(DATE)


def _of_zone(time: pl.Expr, zone: str) -> pl.Expr:
    return time.dt.replace_time_zone("UTC").dt.convert_time_zone(zone).dt.replace_time_zone(None)


PARTS: Mapping[str, Callable[[pl.Expr], pl.Expr]] = {
    "year": lambda t: t.dt.year(),
    "quarter": lambda t: t.dt.quarter(),
    "month": lambda t: t.dt.month(),
    "weekofyear": lambda t: t.dt.week(),
    "dayofmonth": lambda t: t.dt.day(),
    "day": lambda t: t.dt.day(),
    "dayofyear": lambda t: t.dt.ordinal_day(),
    "dayofweek": lambda t: t.dt.weekday() % 7 + 1,
    "hour": lambda t: t.dt.hour(),
    "minute": lambda t: t.dt.minute(),
}
_PART_NAMES = {"week": "weekofyear", "w": "weekofyear", "dow": "dayofweek", "doy": "dayofyear"}
_PART_NAMES |= {"day_of_week": "dayofweek", "day_of_year": "dayofyear", "week_of_year": "weekofyear"}


def _part(name: str, time: pl.Expr) -> pl.Expr:
    part = PARTS.get(_PART_NAMES.get(name.lower(), name.lower()))
    if part is None:
        raise ValueError(f"{name} can't be extracted; there are {', '.join(PARTS)}, and the function SECOND")
    return part(time)


# -- arrays ------------------------------------------------------------------------------------------
def _has(array: pl.Expr, value: pl.Expr) -> pl.Expr:
    """Null if it may be one of the nulls in the array."""
    nulls = array.list.eval(pl.element().is_null()).list.any()
    found = pl.when(value.is_null() | array.is_null()).then(None).when(array.list.contains(value)).then(pl.lit(True))
    return found.when(nulls.fill_null(value=False)).then(None).otherwise(pl.lit(False))


def _at(array: pl.Expr, place: pl.Expr, *, strict: bool) -> pl.Expr:
    """From 1, or from the end."""
    gone = refuse(place == 0, place, "the elements of ELEMENT_AT begin with 1", LONG)
    return array.list.get(pl.when(gone > 0).then(gone - 1).otherwise(gone), null_on_oob=not strict)


def item(array: pl.Expr, place: pl.Expr, *, strict: bool) -> pl.Expr:
    """From 0."""
    size = array.list.len().cast(LONG)
    if strict:
        place = refuse((place < 0) | (place >= size), place, "there is no such element: write GET(array, i)", LONG)
    return array.list.get(pl.when(place >= 0).then(place), null_on_oob=True)


FUNCTIONS: Mapping[str, Rule] = {
    **{name: Rule("n", DOUBLE, function) for name, function in _OF_DOUBLES.items()},
    **{name: Rule("t", INT, function) for name, function in PARTS.items()},
    # text
    "bit_length": Rule("s", INT, lambda s: s.str.len_bytes().cast(INT) * 8),
    "concat": Rule("c*", TEXT, lambda *parts: pl.concat_str(parts)),
    "concat_ws": Rule("Sc*", TEXT, lambda by, *parts: pl.concat_str(parts, separator=by, ignore_nulls=True)),
    "contains": Rule("ss", BOOL, lambda s, part: s.str.contains(part, literal=True)),
    "endswith": Rule("ss", BOOL, lambda s, part: s.str.ends_with(part)),
    "get_json_object": Rule("sS", TEXT, _json),
    "initcap": Rule("s?S", TEXT, lambda s, _=" ": _initial_capitals(s)),
    "instr": Rule("ss?I", INT, _position),
    "left": Rule("si", TEXT, lambda s, n: s.str.head(n.clip(0))),
    "length": Rule("s", INT, lambda s: s.str.len_chars()),
    "lower": Rule("s", TEXT, lambda s: s.str.to_lowercase()),
    "lpad": Rule("sI?S", TEXT, lambda s, size, fill=" ": _padded(s, size, fill, left=True)),
    "ltrim": Rule("s?S", TEXT, lambda s, chars=" ": s.str.strip_chars_start(chars)),
    "octet_length": Rule("s", INT, lambda s: s.str.len_bytes()),
    "overlay": Rule("ssI?I", TEXT, _overlaid),
    "regexp_count": Rule("sR", INT, lambda s, regex: s.str.count_matches(regex)),
    "regexp_extract": Rule("sR?I", TEXT, lambda s, regex, group=1: s.str.extract(regex, group)),
    "regexp_extract_all": Rule("sR?I", None, lambda s, regex, group=1: _all_matches(s, regex, group)),
    "regexp_like": Rule("sR", BOOL, lambda s, regex: s.str.contains(regex)),
    "regexp_replace": Rule("sRS", TEXT, _replaced),
    "repeat": Rule("si", TEXT, _repeated),
    "replace": Rule("sS?S", TEXT, lambda s, old, new="": s.str.replace_all(old, new, literal=True) if old else s),
    "reverse": Rule("s", TEXT, lambda s: s.str.split("").list.reverse().list.join("")),
    "right": Rule("si", TEXT, lambda s, n: s.str.tail(n.clip(0))),
    "rpad": Rule("sI?S", TEXT, lambda s, size, fill=" ": _padded(s, size, fill, left=False)),
    "rtrim": Rule("s?S", TEXT, lambda s, chars=" ": s.str.strip_chars_end(chars)),
    "space": Rule("i", TEXT, lambda n: _repeated(pl.lit(" "), n)),
    "split": Rule("sS?I", None, _split),
    "split_index": Rule("ssi", TEXT, lambda s, by, place: s.str.split(by).list.get(place, null_on_oob=True)),
    "split_part": Rule("sSI", TEXT, _split_part),
    "startswith": Rule("ss", BOOL, lambda s, part: s.str.starts_with(part)),
    "substring": Rule("si?i", TEXT, _substring),
    "substring_index": Rule("sSI", TEXT, _up_to),
    "translate": Rule("sSS", TEXT, _translated),
    "trim": Rule("s?S", TEXT, lambda s, chars=" ": s.str.strip_chars(chars)),
    "upper": Rule("s", TEXT, lambda s: s.str.to_uppercase()),
    # numbers
    "atan2": Rule("nn", DOUBLE, pl.arctan2),
    "bit_count": Rule("v", INT, _bits),
    "bround": Rule("v?I", None, lambda v, digits=0: _round(v, digits, even=True)),
    "ceil": Rule("!v", None, lambda v: _whole(v, up=True)),
    "e": Rule("", DOUBLE, lambda: pl.lit(math.e)),
    "floor": Rule("!v", None, lambda v: _whole(v, up=False)),
    "hypot": Rule("nn", DOUBLE, lambda x, y: (x * x + y * y).sqrt()),
    "isnan": Rule("n", BOOL, lambda x: x.is_nan().fill_null(value=False)),
    "log": Rule("nn", DOUBLE, _log),
    "nanvl": Rule("nn", DOUBLE, lambda x, y: pl.when(x.is_nan()).then(y).otherwise(x)),
    "pi": Rule("", DOUBLE, lambda: pl.lit(math.pi)),
    "power": Rule("nn", DOUBLE, lambda x, y: x.pow(y)),
    "round": Rule("v?I", None, _round),
    "shiftleft": Rule("vI", None, lambda v, by: _shift(v, by, left=True)),
    "shiftright": Rule("vI", None, lambda v, by: _shift(v, by, left=False)),
    # times
    "add_months": Rule("di", DATE, lambda d, n: moved(d, n, "month")),
    "date_add": Rule("di", DATE, lambda d, n: (d.cast(INT) + n.cast(INT)).cast(DATE)),
    "date_format": Rule("tF", TEXT, lambda t, pattern: t.dt.strftime(pattern.chrono)),
    "date_from_unix_date": Rule("i", DATE, lambda n: n.cast(INT).cast(DATE)),
    "date_trunc": Rule("tU", None, _truncated),
    "datediff": Rule("dd", INT, lambda last, first: last.cast(INT) - first.cast(INT)),
    "dayname": Rule("d", TEXT, lambda d: d.dt.strftime("%a")),
    "extract": Rule("Ut", INT, _part),
    "from_unixtime": Rule("iF", TEXT, lambda n, pattern: (n * 10**6).cast(TIME).dt.strftime(pattern.chrono)),
    "from_utc_timestamp": Rule("tS", None, _of_zone),
    "last_day": Rule("d", DATE, lambda d: d.dt.month_end()),
    "make_date": Rule("!iii", DATE, pl.date),
    "monthname": Rule("d", TEXT, lambda d: d.dt.strftime("%b")),
    "next_day": Rule("dS", DATE, _next_day),
    "second": Rule("t", INT, lambda t: t.dt.second()),
    "timestamp_micros": Rule("i", TIME, lambda n: n.cast(TIME)),
    "timestamp_millis": Rule("i", TIME, lambda n: (n * 1000).cast(TIME)),
    "timestamp_seconds": Rule("i", TIME, lambda n: (n * 10**6).cast(TIME)),
    "timestampadd": Rule("Uit", TIME, _added),
    "timestampdiff": Rule("Utt", LONG, _apart),
    "to_timestamp_ltz": Rule("iI", TIME, lambda n, digits: (n * 10 ** (6 - digits)).cast(TIME)),
    "trunc": Rule("Ud", DATE, _truncated_date),
    "try_to_timestamp": Rule("sF", TIME, lambda s, pattern: read_time(s, pattern, strict=False)),
    "unix_date": Rule("d", INT, lambda d: d.cast(INT)),
    "unix_micros": Rule("t", LONG, micros_of),
    "unix_millis": Rule("t", LONG, lambda t: micros_of(t) // 1000),
    "unix_seconds": Rule("t", LONG, lambda t: micros_of(t) // 10**6),
    "weekday": Rule("d", INT, lambda d: d.dt.weekday() - 1),
    # arrays
    "array_contains": Rule("ax", BOOL, _has),
    "array_distinct": Rule("a", None, lambda a: a.list.unique(maintain_order=True)),
    "array_join": Rule("aS", TEXT, lambda a, by: a.list.join(by, ignore_nulls=True)),
    "array_max": Rule("a", None, lambda a: a.list.max()),
    "array_min": Rule("a", None, lambda a: a.list.min()),
    "array_sort": Rule("a", None, lambda a: a.list.sort(nulls_last=True)),
    "element_at": Rule("!ai", None, lambda a, n: _at(a, n, strict=True)),
    "get": Rule("ai", None, lambda a, n: item(a, n, strict=False)),
    "size": Rule("a", INT, lambda a: a.list.len()),
    "slice": Rule("aII", None, lambda a, start, n: a.list.slice(start - 1 if start > 0 else start, n)),
    "sort_array": Rule("a", None, lambda a: a.list.sort(nulls_last=False)),
    "try_element_at": Rule("!ai", None, lambda a, n: _at(a, n, strict=False)),
}
"""By the name of Spark, in lower case."""

ALSO: Mapping[str, str] = {
    "array_size": "size",
    "btrim": "trim",
    "cardinality": "size",
    "ceiling": "ceil",
    "char_length": "length",
    "character_length": "length",
    "charindex": "instr",
    "date_part": "extract",
    "datepart": "extract",
    "day_of_month": "dayofmonth",
    "day_of_week": "dayofweek",
    "day_of_year": "dayofyear",
    "ends_with": "endswith",
    "lcase": "lower",
    "len": "length",
    "locate": "instr",
    "mid": "substring",
    "position": "instr",
    "pow": "power",
    "signum": "sign",
    "starts_with": "startswith",
    "str_position": "instr",
    "substr": "substring",
    "ucase": "upper",
    "week_of_year": "weekofyear",
}
"""Other names of functions."""

_CLOCK = (
    "it would give something else when messages are read again: use a column of the message, or a window by PROCTIME()"
)
_OWN = "give a function of your own: app.sql(..., functions={...})"
REFUSED: Mapping[str, str] = {
    **dict.fromkeys(("current_timestamp", "current_date", "current_time", "now", "localtimestamp"), _CLOCK),
    **dict.fromkeys(
        ("rand", "randn", "random", "uuid", "shuffle"), "it would give something else when messages are read again"
    ),
    **dict.fromkeys(("md5", "sha", "sha1", "sha2", "crc32", "hash", "xxhash64"), f"Polars has no such hash: {_OWN}"),
    **dict.fromkeys(
        ("format_string", "printf", "format_number", "to_char", "to_number"), f"write CONCAT, ROUND or CAST, or {_OWN}"
    ),
    "exists": "write LEFT SEMI JOIN ... ON, or LEFT ANTI JOIN for NOT EXISTS",
    "to_utc_timestamp": "times are in UTC here; write FROM_UTC_TIMESTAMP for another zone",
    "mean": "write AVG",
    "every": "write BOOL_AND",
    "some": "write BOOL_OR",
    "std": "write STDDEV",
    "months_between": "write TIMESTAMPDIFF(MONTH, a, b) for whole months",
}
"""Why a function isn't there."""
