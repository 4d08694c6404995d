"""Options and arguments that several commands share. Every command imports this, so it imports nothing heavy."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from headrace.core.deployment import DEFAULT_HOME, SETTINGS, home_of, metadata_url_of
from headrace.core.secrets import SecretUrl
from headrace.stores.snapshots import ObjectPlace, snapshots_of


def _is_given(context: typer.Context, name: str) -> bool:
    source = context.get_parameter_source(name)
    return source is not None and source.name != "DEFAULT"


def _home(context: typer.Context, home: Path) -> Path:
    return home if _is_given(context, "home") else home_of(None, context.params.get("app") or "")


def _metadata(context: typer.Context, metadata: SecretUrl | None) -> SecretUrl | None:
    return metadata or metadata_url_of(None, context.params.get("app") or "")


Home = Annotated[
    Path,
    typer.Option(
        "--home",
        metavar="FOLDER",
        help=SETTINGS["home"].help,
        callback=_home,
        show_default=True,
        file_okay=False,
    ),
]
HOME = Path(DEFAULT_HOME)
AppHome = Annotated[
    Path | None,
    typer.Option(
        "--home",
        metavar="FOLDER",
        help=f"The home of the app, if its code names none.  [env var: HEADRACE_HOME; default: {DEFAULT_HOME}]",
        show_default=False,
        file_okay=False,
    ),
]
GivenMetadata = Annotated[
    SecretUrl | None,
    typer.Option(
        "--metadata",
        metavar="URL",
        parser=metadata_url_of,
        help=SETTINGS["metadata"].help,
        show_default=False,
    ),
]
Metadata = Annotated[
    SecretUrl | None,
    typer.Option(
        "--metadata",
        metavar="URL",
        parser=metadata_url_of,
        callback=_metadata,
        help=SETTINGS["metadata"].help,
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
Quiet = Annotated[bool, typer.Option("--quiet", help="Show no progress.")]
AppOrAll = Annotated[str | None, typer.Argument(metavar="APP", help="The app; by default all apps of the home folder.")]
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
