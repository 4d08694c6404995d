"""24. Move an app: read the last hour again, go back to a savepoint, and spread state over more tasks, all by command.

It prints::

    offsets: lag [0, 0]
    startpoint set --dry-run: [0, 4] messages would be read again
    startpoint set --apply: ['released', 'released'], 8 are seen
    savepoint create: monday
    later 10 are seen
    restore --dry-run: timeline 2
    restore page-views monday: 2 timelines
    undo page-views: 1 timelines
    restore --partitions: {'before': 2, 'after': 3} tasks
    repeated silently, and a new view: 11 are seen
    read_savepoint: ['/help', '/pay', '/']
    export, import, list: [('debug', 'monday'), ('page-views', 'monday'), ('page-views', 'tuesday')]
"""

import json
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from tempfile import TemporaryDirectory

import polars as pl

import headrace as hr

VIEWS = {"member": pl.String, "page": pl.String}
HEADRACE = (sys.executable, "-m", "headrace.operate.cli.main")


def declare(home: str) -> hr.App:
    app = hr.App("page-views", home=home, checkpoint_interval="100ms")
    views = app.input("views", VIEWS)
    views.send_to(app.output("seen"))
    views.partition_by("member", id="by-member").send_to(app.table("last-page", key="member", schema=VIEWS))
    return app


def headrace(home: str, command: str):
    ran = subprocess.run([*HEADRACE, *command.split(), "--home", home], check=True, capture_output=True, text=True)
    return json.loads(ran.stdout) if "--json" in command else None


@contextmanager
def running(home: str, *options: str):
    command = [*HEADRACE, "run", f"{__file__}:declare", "--arg", f"home={home}", "--local", "--quiet", *options]
    with subprocess.Popen(command) as process:
        yield
        process.send_signal(signal.SIGINT)  # what Ctrl-C sends: the app drains


def seen(home: str, wanted: int, *views: tuple[str, str]) -> str:
    with hr.streams.StreamWriter("views", key="member", home=home) as writer:
        writer.write(pl.DataFrame(views, schema=VIEWS, orient="row"))
    end = time.monotonic() + 120
    while (number := hr.streams.read_stream("seen", home=home).height) < wanted and time.monotonic() < end:
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
            print("savepoint create:", headrace(home, "savepoint create page-views monday --quiet --json")["name"])
            print("later", seen(home, 10, ("ann", "/help"), ("bob", "/pay")))
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
