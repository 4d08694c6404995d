"""Options that several commands share."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated

import typer

from headrace.core.home import DEFAULT_HOME, HOME_VARIABLE, METADATA_VARIABLE, metadata_url_of
from headrace.core.url import SecretUrl
from headrace.stores.objects.place import ObjectPlace, snapshots_of

Home = Annotated[
    Path,
    typer.Option(
        "--home",
        envvar=HOME_VARIABLE,
        metavar="FOLDER",
        help="Where Headrace keeps its data; the embedded log is in FOLDER/streams.",
        show_default=True,
        file_okay=False,
    ),
]
HOME = Path(DEFAULT_HOME)

Metadata = Annotated[
    SecretUrl | None,
    typer.Option(
        "--metadata",
        envvar=METADATA_VARIABLE,
        metavar="URL",
        parser=metadata_url_of,
        help="The PostgreSQL database that keeps the metadata; by default it is in the home folder. Pass a "
        "password in the environment variable instead.",
        show_default=False,
    ),
]

Snapshots = Annotated[
    ObjectPlace | None,
    typer.Option(
        "--snapshots",
        metavar="URL",
        parser=snapshots_of,
        help="The object store with the snapshots, if it isn't the one the app was started with.",
        show_default=False,
    ),
]

AsJson = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]

AppOrAll = Annotated[str | None, typer.Argument(metavar="APP", help="The app; by default all apps of the home folder.")]

StreamName = Annotated[
    str,
    typer.Argument(
        metavar="NAME",
        help="The stream, as NAME or SYSTEM.NAME. NAME alone means a stream of the embedded log, or with --app "
        "one of the app's own system.",
    ),
]

OfApp = Annotated[
    str | None,
    typer.Option(
        "--app", metavar="APP", help="Resolve names as this app does, and look for its own streams where it keeps them."
    ),
]

Schema = Annotated[
    str | None,
    typer.Option(
        "--schema",
        metavar="COLUMNS",
        help='The columns and their types: "member:str,url:str,ts:datetime[ms]".',
    ),
]


def column_names(text: str | None) -> tuple[str, ...]:
    """Return the columns of an option such as ``--key a,b``."""
    return tuple(name.strip() for name in text.split(",")) if text else ()


Partition = Annotated[int | None, typer.Option("--partition", metavar="P", help="Only this partition.")]

Pipeline = Annotated[
    str,
    typer.Argument(
        metavar="PIPELINE",
        help="The Python file that declares the app (pipeline.py); or an app, or a function that returns one, in a "
        "file or module (pipeline.py:make_app, package.module:app).",
    ),
]

FunctionArguments = Annotated[
    list[str] | None,
    typer.Option(
        "--arg",
        metavar="NAME=VALUE",
        help="An argument of the function that creates the app; may be given several times.",
    ),
]

FileArguments = Annotated[
    list[str] | None, typer.Argument(metavar="ARGUMENTS", help="Arguments for the file (its sys.argv), after --.")
]

AppName = Annotated[str | None, typer.Option("--app", metavar="NAME", help="The app to use, if the file has several.")]

DropState = Annotated[
    list[str] | None,
    typer.Option(
        "--drop-state",
        metavar="ID",
        help="Let this step, table, stream, input or output start over if its kept state or stream doesn't fit any "
        "more; may be given several times.",
    ),
]

Rename = Annotated[
    list[str] | None,
    typer.Option(
        "--rename",
        metavar="OLD=NEW",
        help="NEW is the new id of OLD and continues with its state; may be given several times.",
    ),
]


FromTables = Annotated[
    list[str] | None,
    typer.Option(
        "--from-tables",
        metavar="INPUT=TABLE",
        help="Read the input's history from a Spark table (views=db.views, or views=parquet:/path); "
        "may be given several times.",
    ),
]


def tables_of(pairs: Sequence[str]) -> dict[str, str]:
    """Return ``INPUT=TABLE`` pairs as a dict."""
    from headrace.core.errors import UsageError

    found: dict[str, str] = {}
    for input_, table in _split("--from-tables", "INPUT=TABLE", "views=db.views", pairs):
        if input_ in found:
            raise UsageError(f"--from-tables gives {input_!r} two tables: {found[input_]!r} and {table!r}")
        found[input_] = table
    return found


def renames(pairs: Sequence[str]) -> dict[str, str]:
    """Return ``OLD=NEW`` pairs as a dict from new to old ids."""
    from headrace.core.errors import UsageError

    found: dict[str, str] = {}
    for old, new in _split("--rename", "OLD=NEW", "per-10s=per-window", pairs):
        if new in found:
            raise UsageError(f"--rename gives {new!r} two former ids: {found[new]!r} and {old!r}")
        found[new] = old
    return found


def _split(option: str, form: str, example: str, pairs: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield the two sides of each pair. Raises ``UsageError`` for a text that isn't a pair."""
    from headrace.core.errors import UsageError

    for pair in pairs:
        left, equals, right = (part.strip() for part in pair.partition("="))
        if not left or not equals or not right:
            raise UsageError(f"{option} {pair}: expected {form}", hint=f"write {option} {example}")
        yield left, right
