"""``headrace run``, ``plan``, ``backfill``, ``doctor`` and ``new``."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, MutableMapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from functools import cache
from pathlib import Path
from textwrap import indent
from typing import TYPE_CHECKING, Annotated

import typer

from headrace.core.deployment import SETTINGS, Found, setting
from headrace.core.errors import HeadraceError, UsageError
from headrace.operate.cli.console import Exit, print_json, print_line, print_note, print_result, print_table
from headrace.operate.cli.options import (
    AppHome,
    AppName,
    AsJson,
    FileArguments,
    FunctionArguments,
    GivenMetadata,
    Quiet,
)

if TYPE_CHECKING:
    from headrace.api.specs import Graph
    from headrace.life.startpoints import StartpointState

_QUICKLY = "-XX:TieredStopAtLevel=1"

Pipeline = Annotated[
    str,
    typer.Argument(
        metavar="PIPELINE",
        help="The file that declares the app (pipeline.py, counts.sql); or an app, or a function that returns one, in "
        "a file or module (pipeline.py:make_app, package.module:app).",
    ),
]
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
Conf = Annotated[
    list[str] | None, typer.Option(metavar="KEY=VALUE", help="A Spark setting; may be given several times.")
]


def run(
    pipeline: Pipeline,
    arguments: FileArguments = None,
    app: AppName = None,
    arg: FunctionArguments = None,
    home: AppHome = None,
    master: Annotated[
        str | None,
        typer.Option(
            metavar="MASTER",
            help=SETTINGS["master"].help,
        ),
    ] = None,
    containers: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            help=SETTINGS["containers"].help,
        ),
    ] = None,
    stage: Annotated[
        list[str] | None,
        typer.Option(
            metavar="STAGE", help="Run only this stage; may be given several times. The other stages run elsewhere."
        ),
    ] = None,
    local: Annotated[bool, typer.Option("--local", help="Run in this process, without Spark.")] = False,
    conf: Conf = None,
    drop_state: DropState = None,
    rename: Rename = None,
    savepoint: Annotated[
        str, typer.Option(metavar="NAME", help="Take a savepoint when the app ends, before it drains.")
    ] = "",
    listen: Annotated[
        str | None,
        typer.Option(
            metavar="HOST[:PORT]",
            help=SETTINGS["listen"].help,
        ),
    ] = None,
    advertise: Annotated[
        str | None,
        typer.Option(
            metavar="HOST[:PORT]",
            help=SETTINGS["advertise"].help,
        ),
    ] = None,
    batch: Annotated[
        bool,
        typer.Option(
            "--batch", help="Run the app as one Spark job over the present contents of its inputs, without containers."
        ),
    ] = False,
    until: Annotated[
        str | None,
        typer.Option(
            metavar="TIME",
            help="Where --batch or --backfill stops reading inputs: now, a time (2026-01-31T12:00Z), or offsets "
            "(views/0=1200,views/1=980).",
        ),
    ] = None,
    again: Annotated[
        bool,
        typer.Option(
            "--again", help="Run a batch job even if its results are published already; they then appear twice."
        ),
    ] = False,
    backfill: Annotated[
        bool,
        typer.Option("--backfill", help="First compute the history up to --until in a Spark job, then continue live."),
    ] = False,
    from_tables: FromTables = None,
    quiet: Quiet = False,
    as_json: Annotated[bool, typer.Option("--json", help="When the app ends, print how as JSON.")] = False,
) -> None:
    """Run an app until it ends.

    Ctrl-C drains the app: it finishes what it has read, then ends with exit code 0. A second Ctrl-C ends it at once.
    If the app has changed since its last run, headrace plan shows what the change means for its state.
    Log lines go to stderr; --log-level and --log-format (see headrace --help) select them.
    """
    from headrace.operate.cli.loader import load_runnable_app

    settings = parse_conf(conf or ())
    if local and (master or containers or settings):
        raise UsageError("--local runs without Spark, so --master, --containers and --conf have no effect")
    if batch and (local or containers or stage or savepoint or listen or advertise):
        raise UsageError(
            "--batch runs one Spark job without containers, so --local, --containers, --stage, --savepoint, --listen "
            "and --advertise have no effect"
        )
    if not batch and (again or (until and not backfill)):
        raise UsageError("--until and --again apply only to batch jobs", hint="add --batch or --backfill")
    if from_tables and not backfill:
        raise UsageError("--from-tables applies only to a backfill", hint="add --backfill and --until TIME")
    application = load_runnable_app(pipeline, app, arguments or (), arg or (), home)
    if not (local or batch or backfill):
        hurry_jvm(os.environ)
    application.run(
        master=master, containers=containers, stages=stage or None, local=local, conf=settings or None,
        progress=not quiet, drop_state=drop_state or (), rename=renames(rename), savepoint=savepoint, listen=listen,
        advertise=advertise, batch=batch, until=until, again=again, backfill=backfill, tables=tables_of(from_tables),
    )  # fmt: skip
    if as_json:
        print_json({"app": application.name, "ended": True})


def hurry_jvm(environ: MutableMapping[str, str]) -> None:
    """Make the JVM that starts next compile quickly rather than well, because it only hosts Python containers: the
    second compiler takes half of the processor time of a start. The user's SPARK_SUBMIT_OPTS take precedence."""
    given = environ.get("SPARK_SUBMIT_OPTS", "")
    if _QUICKLY not in given.split():
        environ["SPARK_SUBMIT_OPTS"] = f"{_QUICKLY} {given}".rstrip()


def parse_conf(pairs: Sequence[str]) -> dict[str, str]:
    """Return ``KEY=VALUE`` pairs as a dict. A key given twice is an error, because one value would be lost."""
    settings: dict[str, str] = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not key.strip() or not equals:
            raise UsageError(f"--conf {pair}: expected KEY=VALUE", hint="write --conf spark.executor.memory=4g")
        if key in settings:
            raise UsageError(f"--conf {key} is given twice: {settings[key]!r} and {value!r}")
        settings[key.strip()] = value
    return settings


def tables_of(pairs: Sequence[str] | None) -> dict[str, str]:
    found: dict[str, str] = {}
    for input_, table in _split("--from-tables", "INPUT=TABLE", "views=db.views", pairs):
        if input_ in found:
            raise UsageError(f"--from-tables gives {input_!r} two tables: {found[input_]!r} and {table!r}")
        found[input_] = table
    return found


def renames(pairs: Sequence[str] | None) -> dict[str, str]:
    """Return ``OLD=NEW`` pairs as a dict from new to old ids."""
    found: dict[str, str] = {}
    for old, new in _split("--rename", "OLD=NEW", "per-10s=per-window", pairs):
        if new in found:
            raise UsageError(f"--rename gives {new!r} two former ids: {found[new]!r} and {old!r}")
        found[new] = old
    return found


def _split(option: str, form: str, example: str, pairs: Sequence[str] | None) -> Iterator[tuple[str, str]]:
    for pair in pairs or ():
        left, equals, right = (part.strip() for part in pair.partition("="))
        if not left or not equals or not right:
            raise UsageError(f"{option} {pair}: expected {form}", hint=f"write {option} {example}")
        yield left, right


def backfill(
    pipeline: Pipeline,
    arguments: FileArguments = None,
    *,
    until: Annotated[
        str,
        typer.Option(
            metavar="TIME",
            help="Where the history of inputs ends: now, a time (2026-01-31T12:00Z), or views/0=1200,views/1=980.",
        ),
    ],
    app: AppName = None,
    arg: FunctionArguments = None,
    home: AppHome = None,
    from_tables: FromTables = None,
    savepoint: Annotated[str, typer.Option(metavar="NAME", help="The name of the savepoint.")] = "backfill",
    publish: Annotated[
        bool, typer.Option(help="Whether to publish the results of the history. Without them, the app may be running.")
    ] = True,
    again: Annotated[
        bool,
        typer.Option(
            "--again", help="Run even if results of a batch job are published already; they then appear twice."
        ),
    ] = False,
    master: Annotated[str | None, typer.Option(metavar="MASTER", help=SETTINGS["master"].help)] = None,
    conf: Conf = None,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Compute an app's history in a Spark job.

    The job ends with a savepoint from which a live run continues. It publishes the windows that have ended at --until;
    the others stay open in the savepoint. Restore it with headrace savepoint restore, then run the app. headrace run
    --backfill does all of that. An interrupted command can be repeated: nothing is published twice.
    """
    from headrace.operate.cli.loader import load_runnable_app

    application = load_runnable_app(pipeline, app, arguments or (), arg or (), home)
    application.backfill(
        until, tables=tables_of(from_tables), savepoint=savepoint, publish=publish, master=master,
        conf=parse_conf(conf or ()) or None, again=again, progress=not quiet,
    )  # fmt: skip
    if as_json:
        print_json({"app": application.name, "savepoint": savepoint, "published": publish})


def plan(
    pipeline: Pipeline,
    arguments: FileArguments = None,
    app: AppName = None,
    arg: FunctionArguments = None,
    home: AppHome = None,
    containers: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            help="Plan for N containers; only grouping by container depends on it.  [env var: HEADRACE_CONTAINERS; "
            "default: 1]",
        ),
    ] = None,
    html: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the plan as a self-contained HTML page.")
    ] = None,
    against: Annotated[
        str | None,
        typer.Option(
            metavar="APP",
            help="Show only what would change in the app's kept state, streams and outputs; ask databases and brokers "
            "about outputs. Fails if a change is refused.",
        ),
    ] = None,
    drop_state: DropState = None,
    rename: Rename = None,
    as_json: AsJson = False,
) -> None:
    """Show the stages, tasks and streams of an app.

    Looks at existing streams and at the app's kept state, shows what has changed since the last run, and runs nothing.
    """
    from headrace.life.changelogs import apps_with_checkpoints
    from headrace.life.metadata import existing_metadata
    from headrace.life.startpoints import StartpointBook
    from headrace.operate.cli.loader import load_app
    from headrace.operate.page.plan_page import plan_html
    from headrace.plan import changes
    from headrace.plan.inventory import consent_of
    from headrace.plan.render import render, to_json, to_text
    from headrace.run.planning import Deployment, ask_targets, check_not_ended

    graph = load_app(pipeline, app, arguments or (), arg or (), home).graph()
    consent, home = consent_of(drop_state or (), renames(rename)), Path(graph.settings.home)
    with existing_metadata(home, graph.settings.metadata) as metadata:
        deployment = Deployment(graph, metadata, consent, against or "")
        found = deployment.planned(setting("containers", containers, graph.app) or 1)
        if against is not None:
            if not deployment.inventory:
                known = ", ".join(apps_with_checkpoints(home, metadata))
                elsewhere = (
                    "name its home folder (HEADRACE_HOME or home= of the app) or its metadata store (HEADRACE_METADATA "
                    "or metadata= of the app)"
                )
                raise UsageError(
                    f"app {against!r} has never run in {metadata.place}",
                    hint=f"apps that have: {known}" if known else elsewhere,
                )
            due = changes.with_answers(found.changes, ask_targets(found.plan))
            waiting = StartpointBook(metadata, against).states()
            data = {"app": against, "changes": changes.to_json(due), "startpoints": waiting}
            print_result(as_json, data, changes.to_text(due) + _in_lines(waiting))
            due.check()
            check_not_ended(found, metadata, against)
            return
        waiting = StartpointBook(metadata, graph.app).states()
    rendered = render(found.plan)
    if html is not None:
        try:
            html.write_text(plan_html(rendered), encoding="utf-8")
        except OSError as error:
            raise UsageError(f"--html {html} can't be written: {error.strerror}") from error
        print_note(f"wrote {html}")
    if as_json:
        print_json(to_json(rendered))
    elif html is None:
        print_line(to_text(rendered).rstrip("\n") + _in_lines(waiting))
        if deployment.inventory and found.changes.notable:
            print_line(f"\nchanged since the last run\n{indent(changes.to_text(found.changes), '  ')}")


def _in_lines(waiting: Sequence[StartpointState]) -> str:
    if not waiting:
        return ""
    lines = "".join(f"\n  {state.in_words}" for state in waiting)
    return f"\n\nstartpoints, for the next live start; a batch job applies none{lines}"


def doctor(
    pipeline: Annotated[
        str | None,
        typer.Argument(metavar="[PIPELINE]", help="Also ask the systems of this app: its brokers, databases, stores."),
    ] = None,
    arguments: FileArguments = None,
    app: AppName = None,
    arg: FunctionArguments = None,
    home: AppHome = None,
    metadata: GivenMetadata = None,
    as_json: AsJson = False,
) -> None:
    """Check whether this machine can run apps.

    Looks at Python, Java, Spark, limits, memory, network, disk, clock and metadata; with an app, at its systems too.
    Each line says ok, warning or problem, and what to do. Exits with 1 if there is a problem. Then it lists the
    settings in force, and where each is said.
    """
    from headrace.operate.doctor import in_force, look

    @cache
    def graph() -> Graph:
        from headrace.operate.cli.loader import load_app

        return load_app(pipeline or "", app, arguments or (), arg or (), home).graph()

    declared: Graph | None = None
    if pipeline is not None:
        with suppress(HeadraceError):  # which the check of the app finds, too
            declared = graph()
    found = list(look(home, metadata, None if pipeline is None else graph))
    settings: list[Found] = []
    with suppress(HeadraceError):
        settings = in_force(home, metadata, declared)
    if as_json:
        said = [{"name": one.setting.name, "value": one.shown, "from": one.place or "default"} for one in settings]
        print_json({"checks": [asdict(one) for one in found], "settings": said})
    else:
        for one in found:
            print_line(f"{one.verdict:8} {one.subject}: {one.found}")
            if one.remedy:
                print_line(f"{'':9}{one.remedy}")
        if settings:
            print_line("")
            rows = [(one.setting.name, one.shown, one.place or "default") for one in settings]
            print_table(("setting", "value", "from"), rows)
    if any(one.verdict == "problem" for one in found):
        raise typer.Exit(Exit.FAILED)


PROJECT_FILES = {
    "pipeline.py": "pipeline.py.txt", "test_pipeline.py": "test_pipeline.py.txt",
    "pyproject.toml": "pyproject.toml.txt", "README.md": "README.md.txt", "Dockerfile": "Dockerfile.txt",
    ".gitignore": "gitignore.txt", ".github/workflows/test.yml": "ci.yml.txt", "monitoring/alerts.yml": "alerts.yml",
    "monitoring/dashboard.json": "dashboard.json",
}  # fmt: skip
"""The files of a project, and the templates that they are made of."""


def new(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The app's name, such as page-views.")],
    folder: Annotated[
        Path | None, typer.Option("--folder", metavar="FOLDER", help="Where to write it; by default a folder NAME.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Write a new project: an app, its tests, an image, alerts.

    The folder must be new or empty. Nothing is overwritten.
    """
    from importlib.resources import files

    from headrace import __version__
    from headrace.core.files import writing

    if not re.fullmatch("[a-z][a-z0-9]*(-[a-z0-9]+)*", name):
        raise UsageError(f"{name!r} is no name for a project", hint="use small letters, digits and hyphens: page-views")
    place = folder or Path(name)
    if place.exists() and (not place.is_dir() or any(place.iterdir())):
        raise UsageError(f"{place} exists and isn't an empty folder", hint="name another one: --folder")
    templates = files("headrace.operate") / "project"
    with writing(place):
        for file, template in PROJECT_FILES.items():
            text = (templates / template).read_text(encoding="utf-8")
            if template.endswith(".txt"):
                text = text.replace("{name}", name).replace("{version}", f">={__version__}")
            (place / file).parent.mkdir(parents=True, exist_ok=True)
            (place / file).write_text(text, encoding="utf-8")
    if as_json:
        print_json({"folder": str(place), "files": list(PROJECT_FILES)})
        return
    for file in PROJECT_FILES:
        print_line(str(place / file))
    print_note(f"\nNext: cd {place}; pytest; headrace plan pipeline.py; README.md has the rest.")
