"""An app that tests run: each task logs the first message that it takes from each input partition in each attempt.

A message carries its partition and its offset. The log has a line for each: task, input, partition and offset.
"""

import sys
from dataclasses import dataclass
from pathlib import Path

import polars as pl

import headrace as hr

home = sys.argv[1]
COLUMNS = {"partition": pl.Int64, "offset": pl.Int64}


@dataclass(frozen=True)
class Nth(hr.startpoints.CustomStartpoint):
    """A place between the oldest message and the end, by time."""

    kind = "at-time"
    time_ms: int

    def offset(self, partition):
        """Find it."""
        return partition.offset_at(self.time_ms)


class Logging(hr.tasks.Task):
    """Logs what comes first."""

    def init(self, context):
        """A new attempt: everything is the first of its kind."""
        self.task = context.task
        self.seen = set()

    def process(self, message, out):
        """A message."""
        place = (out.input, message["partition"])
        if place not in self.seen:
            self.seen.add(place)
            with Path(home, "first.log").open("a") as log:
                log.write(f"{self.task} {out.input} {message['partition']} {message['offset']}\n")
        out.send("taken", message)


app = hr.App("first", home=home, checkpoint_interval="50ms", startpoints=[Nth])
flows = app.task(
    Logging(),
    {"views": app.input("views", COLUMNS), "rates": app.input("rates", COLUMNS, broadcast=True)},
    {"taken": COLUMNS},
    id="logging",
)
flows["taken"].send_to(app.output("taken"))

if __name__ == "__main__":
    print("running", flush=True)
    if len(sys.argv) > 2:
        app.run(master=sys.argv[2], containers=2, progress=False)
    else:
        app.run(local=True, progress=False)
    print("ended", flush=True)
