"""Numbers, times and types in words. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from headrace.core.clock import utc_text


def counted(number: int, noun: str) -> str:
    """A number with its noun: ``1 row``, ``2,000 rows``."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def format_bytes(size: int) -> str:
    value, unit = float(size), "B"
    for larger in ("kB", "MB", "GB", "TB"):
        if value < 1000:
            break
        value, unit = value / 1000, larger
    return f"{size} B" if unit == "B" else f"{value:.1f} {unit}"


def age(ms: int | None) -> str:
    """A duration in a readable unit: ``0.4 s``, ``12 s``, ``3 min``, ``5 h``."""
    if ms is None:
        return "?"
    seconds = abs(ms) / 1000
    for size, unit in ((86_400, "d"), (3600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{seconds / size:,.0f} {unit}"
    return f"{seconds:.0f} s" if seconds >= 10 else f"{seconds:.1f} s"


def moment(ms: int | None) -> str:
    return "-" if ms is None else utc_text(ms)


def size_as_text(about: Mapping[str, Any]) -> str:
    return counted(about["frames"], "frame") if about["bytes"] is None else format_bytes(about["bytes"])


def columns_as_text(columns: dict[str, Any] | None) -> str:
    if columns is None:
        return "not declared"
    return ", ".join(f"{name}: {_type_as_text(dtype)}" for name, dtype in columns.items())


def _type_as_text(dtype: Any) -> str:
    match dtype:
        case str():
            return dtype
        case {"List": inner}:
            return f"List[{_type_as_text(inner)}]"
        case {"Datetime": {"unit": unit, "zone": zone}}:
            return f"Datetime[{unit}{',' + zone if zone else ''}]"
        case {"Duration": {"unit": unit}}:
            return f"Duration[{unit}]"
        case {"Decimal": {"precision": precision, "scale": scale}}:
            return f"Decimal[{precision},{scale}]"
        case _:
            return str(next(iter(dtype)))
