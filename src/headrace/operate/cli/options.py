"""Options and arguments that several commands share. Every command imports this, so it imports nothing heavy."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from headrace.core.files import DEFAULT_HOME, HOME_VARIABLE, METADATA_VARIABLE, metadata_url_of
from headrace.core.secrets import SecretUrl
from headrace.stores.snapshots import ObjectPlace, snapshots_of

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
AppHome = Annotated[
    Path | None,
    typer.Option(
        "--home",
        metavar="FOLDER",
        help="The home of the app, if its code names none; also HEADRACE_HOME.  [default: .headrace]",
        show_default=False,
        file_okay=False,
    ),
]
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
