"""The form of a store's rows: their kind and columns. A changed app continues from state whose form fits.

A store keeps its form beside its rows, in the changelog and in the local database. ``misfit`` says what is in the way
when another version of the app opens it: another kind of state, another key, a changed type. Columns may come and go.
What an added column holds in older rows is up to the store; null, unless it says otherwise.

Pure: values in, values out.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping

import msgspec
import polars as pl

from headrace.core.errors import DeclarationError
from headrace.serdes.dtypes import dtype_to_json

TAKE_BACK = "undo the change of the declaration, or give the step another id (then its state starts empty)"
FORM = b"\x05"
"""The operation of a change that holds a form. No other kind of store uses it, so it identifies the kind."""
_RENAME = "add a column with another name, or give the step another id (then its state starts empty)"


class StateForm(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a store's rows are.

    ``what`` names the kind of state, as messages say it. ``key`` and ``fixed`` never change; ``columns`` may come and
    go. All three give for each name what it is, usually a type in the words of ``described``. The order of ``key``
    counts.
    """

    what: str
    key: dict[str, str] = {}
    fixed: dict[str, str] = {}
    columns: dict[str, str] = {}

    def written(self) -> bytes:
        """The durable form."""
        return msgspec.json.encode(self)

    @classmethod
    def read(cls, data: bytes) -> StateForm:
        """Read what ``written`` returned."""
        return msgspec.json.decode(data, type=cls)


def described(columns: Mapping[str, pl.DataType]) -> dict[str, str]:
    """Return columns with their types as text: ``Int64``, ``{"List":"Int64"}``."""
    return {name: _type_as_text(dtype) for name, dtype in columns.items()}


def misfit(kept: StateForm, declared: StateForm) -> tuple[str, str] | None:
    """Say why rows of the form ``kept`` can't be opened as ``declared``, and what to do; None if they can."""
    if kept.what != declared.what:
        return f"was stored as {kept.what}, but is now declared as {declared.what}", TAKE_BACK
    if list(kept.key.items()) != list(declared.key.items()):
        return f"has the key {_shown(kept.key)}, but is now declared with {_shown(declared.key)}", TAKE_BACK
    for name in sorted({*kept.fixed, *declared.fixed}):
        was, now = kept.fixed.get(name), declared.fixed.get(name)
        if was != now:
            return f"{name} was stored as {was or 'nothing'}, but is now declared as {now or 'nothing'}", TAKE_BACK
    for name, now in declared.columns.items():
        was = kept.columns.get(name, now)
        if was != now:
            return f"column {name!r} was stored as {was}, but is now declared as {now}", _RENAME
    return None


def check_form(id_: str, kept: StateForm, declared: StateForm) -> None:
    """Raise ``DeclarationError`` if the rows of a store can't be opened in the form that is declared now."""
    found = misfit(kept, declared)
    if found is not None:
        what, hint = found
        raise DeclarationError(f"store {id_!r}{' ' if what.startswith(('was', 'has')) else ': '}{what}", hint=hint)


def grown(kept: StateForm | None, declared: StateForm) -> StateForm:
    """Return the form of rows of both forms together. A removed column stays in it: older rows may still have it."""
    if kept is None:
        return declared
    return msgspec.structs.replace(declared, columns={**kept.columns, **declared.columns})


def other_kind(id_: str) -> DeclarationError:
    """Return the error for stored state that another kind of store wrote."""
    return DeclarationError(
        f"store {id_!r} was stored in another form: a table on disk that is now in memory, or the reverse, or a step "
        "of another kind",
        hint=TAKE_BACK,
    )


def with_types(columns: Iterable[str], types: Mapping[str, pl.DataType]) -> dict[str, str]:
    """Return some of the columns with their types as text."""
    return described({name: types[name] for name in columns})


def _type_as_text(dtype: pl.DataType) -> str:
    try:
        found = dtype_to_json(dtype)
    except DeclarationError:  # a type that streams can't hold, but memory can
        return str(dtype)
    return found if isinstance(found, str) else json.dumps(found, separators=(",", ":"))


def _shown(columns: Mapping[str, str]) -> str:
    return ", ".join(f"{name}: {what}" for name, what in columns.items()) or "(none)"
