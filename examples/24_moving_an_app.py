"""24. Move an app: read the last hour again, go back to a savepoint, and deal state to more tasks.

Every step is a command; ``headrace`` prints what is JSON here as tables.

It prints::

    offsets: lag [0, 0]
    startpoint set --dry-run: 4 messages would be read again
    startpoint set --apply: ['released', 'released'], and 8 views are seen
    savepoint: monday, 4 tasks
    kept: [('ann', '/item'), ('bob', '/cart')]
    with later views: 10 views are seen
    restore --dry-run: would begin timeline 2
    restore: timelines [1, 2]
    undo: timelines [1]
    restore --partitions: by-member from 2 to 3 tasks
    repeated in silence, and a new view: 11 views are seen
    now: [('ann', '/help'), ('bob', '/pay'), ('cem', '/')]
    imported: [('debug', 'monday'), ('page-views', 'monday'), ('page-views', 'tuesday')]
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
HEADRACE = (sys.executable, "-m", "headrace.cli.main")


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


def view(home: str, seen: int, *views: tuple[str, str]) -> str:
    """Write views, and wait until ``seen`` of them are seen in all."""
    with hr.streams.StreamWriter("views", key="member", home=home) as writer:
        writer.write([{"member": member, "page": page} for member, page in views])
    return wait(home, seen)


def wait(home: str, seen: int) -> str:
    deadline = time.monotonic() + 120
    while (there := hr.streams.read_stream("seen", home=home).height) < seen:
        if time.monotonic() > deadline:
            raise TimeoutError(f"{there} of {seen} views are seen")
        time.sleep(0.05)
    return f"{there} views are seen"


def pages(home: str, name: str) -> list[tuple[str, str]]:
    return sorted(hr.read_savepoint(declare(home), name)["last-page"].select("member", "page").rows())


def timelines(home: str) -> list[int]:
    return [one["number"] for one in headrace(home, "savepoint timelines page-views --json")]


with TemporaryDirectory() as home:
    for stream in ("views", "seen"):
        hr.streams.create_stream(stream, partitions=2, schema=VIEWS, home=home)
    with running(home):
        view(home, 4, ("ann", "/"), ("bob", "/"), ("ann", "/item"), ("bob", "/cart"))
        print("offsets: lag", [one["lag"] for one in headrace(home, "offsets page-views --json")])
        answer = headrace(home, "startpoint set page-views views --ago 1h --dry-run --json")
        print(
            f"startpoint set --dry-run: {sum(one['messages'] for one in answer['moves'])} messages would be read again"
        )
        answer = headrace(home, "startpoint set page-views views --ago 1h --apply --json")
        print(f"startpoint set --apply: {[one['state'] for one in answer['states']]}, and {wait(home, 8)}")
        taken = headrace(home, "savepoint create page-views monday --quiet --json")
        print(f"savepoint: {taken['name']}, {taken['tasks']} tasks")
        print("kept:", pages(home, "monday"))
        print("with later views:", view(home, 10, ("ann", "/help"), ("bob", "/pay")))

    planned = headrace(home, "savepoint restore page-views monday --dry-run --json")
    print(f"restore --dry-run: would begin timeline {planned['timeline']}")
    headrace(home, "savepoint restore page-views monday")
    print("restore: timelines", timelines(home))
    headrace(home, "savepoint undo page-views")
    print("undo: timelines", timelines(home))

    restore = "savepoint restore page-views monday --outputs silent --partitions by-member=3 --quiet --json"
    tasks = headrace(home, restore)["tasks"]["by-member"]
    print(f"restore --partitions: by-member from {tasks['before']} to {tasks['after']} tasks")
    with running(home, "--savepoint", "tuesday"):
        print("repeated in silence, and a new view:", view(home, 11, ("cem", "/")))
    print("now:", pages(home, "tuesday"))

    headrace(home, f"savepoint export page-views monday {home}/monday.tar --quiet")
    headrace(home, f"savepoint import debug monday {home}/monday.tar --from page-views --quiet")
    listed = headrace(home, "savepoint list --json")
    print("imported:", [(one["app"], one["name"]) for one in listed])
