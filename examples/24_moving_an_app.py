"""24. Move an app: read the last hour again, go back to a savepoint, and spread state over more tasks, all by command.

It prints::

    offsets: lag [0, 0]
    startpoint set --dry-run: [0, 4] messages would be read again
    startpoint set --apply: ['released', 'released'], 8 are seen
    savepoint create: monday; later 10 are seen
    restore --dry-run: timeline 2
    restore page-views monday: 2 timelines
    undo page-views: 1 timelines
    restore --partitions: {'before': 2, 'after': 3} tasks
    repeated silently, and a new view: 11 are seen
    read_savepoint: ['/help', '/pay', '/']
    export, import, list: [('debug', 'monday'), ('page-views', 'monday'), ('page-views', 'tuesday')]
"""

import io
import json
import signal
import subprocess
import sys
import time
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from tempfile import TemporaryDirectory

import polars as pl

import headrace as hr
from headrace.operate.cli.main import main

VIEWS = {"member": pl.String, "page": pl.String}


def declare(home: str) -> hr.App:
    app = hr.App("page-views", home=home, checkpoint_interval="100ms")
    views = app.input("views", VIEWS)
    views.send_to("seen")
    views.partition_by("member", id="by-member").send_to(app.table("last-page", key="member", schema=VIEWS))
    return app


def headrace(home: str, command: str):  # in this process, as it takes most of a second to start one
    with redirect_stdout(io.StringIO()) as printed, redirect_stderr(io.StringIO()):
        assert main([*command.split(), "--home", home]) == 0
    return json.loads(printed.getvalue()) if "--json" in command else None


@contextmanager
def running(home: str, *options: str):
    command = ("-m", main.__module__, "run", f"{__file__}:declare", "--arg", f"home={home}", "--local", "--quiet")
    with subprocess.Popen([sys.executable, *command, *options]) as process:
        yield
        process.send_signal(signal.SIGINT)  # what Ctrl-C sends: the app drains


def seen(home: str, wanted: int, *views: tuple[str, str]) -> str:
    with hr.streams.StreamWriter("views", key="member", home=home) as writer:
        writer.write(pl.DataFrame(views, schema=VIEWS, orient="row"))
    while (number := hr.streams.read_stream("seen", home=home).height) < wanted:
        time.sleep(0.05)
    return f"{number} are seen"


if __name__ == "__main__":
    with TemporaryDirectory() as home:
        for stream in ("views", "seen"):
            hr.streams.create_stream(stream, partitions=2, schema=VIEWS, home=home)
        with running(home):
            seen(home, 4, ("ann", "/"), ("bob", "/"), ("ann", "/item"), ("bob", "/cart"))
            print("offsets: lag", [one["lag"] for one in headrace(home, "offsets page-views --json")])
            moves = headrace(home, "startpoint set page-views views --ago 1h --dry-run --json")["moves"]
            print(f"startpoint set --dry-run: {[move['messages'] for move in moves]} messages would be read again")
            states = headrace(home, "startpoint set page-views views --ago 1h --apply --json")["states"]
            print(f"startpoint set --apply: {[one['state'] for one in states]}, {seen(home, 8)}")
            name = headrace(home, "savepoint create page-views monday --quiet --json")["name"]
            print(f"savepoint create: {name}; later {seen(home, 10, ('ann', '/help'), ('bob', '/pay'))}")
        restore = "savepoint restore page-views monday --outputs silent --partitions by-member=3 --quiet --json"
        print("restore --dry-run: timeline", headrace(home, f"{restore} --dry-run")["timeline"])
        for verb in ("restore page-views monday", "undo page-views"):
            headrace(home, f"savepoint {verb}")
            print(f"{verb}: {len(headrace(home, 'savepoint timelines page-views --json'))} timelines")
        print(f"restore --partitions: {headrace(home, restore)['tasks']['by-member']} tasks")
        with running(home, "--savepoint", "tuesday"):
            print("repeated silently, and a new view:", seen(home, 11, ("cem", "/")))
        pages = hr.read_savepoint(declare(home), "tuesday")["last-page"].sort("member")["page"]
        print("read_savepoint:", pages.to_list())
        headrace(home, f"savepoint export page-views monday {home}/monday.tar --quiet")
        headrace(home, f"savepoint import debug monday {home}/monday.tar --from page-views --quiet")
        print("export, import, list:", [(s["app"], s["name"]) for s in headrace(home, "savepoint list --json")])
