"""An app that tests run: a low-level task that counts by member, with a timer for each.

It runs until a message asks it to end. The second argument is a Spark master; the app then has two containers.
"""

import sys

import polars as pl

import headrace as hr

home = sys.argv[1]
COLUMNS = {"member": pl.String, "n": pl.Int64, "ts": pl.Int64}


class Counting(hr.tasks.Task):
    """Sends the count with each message, and again when a member has been idle for a second of event time."""

    counts = hr.tasks.Store(key={"member": pl.String}, value={"n": pl.Int64, "last": pl.Int64})

    def process(self, message, out):
        """A message."""
        member = message["member"]
        if member == "end":
            out.shutdown()
            return
        count = (self.counts.get(member) or {"n": 0})["n"] + 1
        self.counts.put(member, {"n": count, "last": message["n"]})
        out.send("counted", {"member": member, "n": count, "last": message["n"]})
        out.set_timer(member, message["ts"] + 1_000)
        if count % 100 == 0:
            out.commit()

    def on_timer(self, timer, out):
        """A member is idle."""
        kept = self.counts.get(timer.key)
        out.send("quiet", {"member": timer.key, "n": kept["n"], "ts": timer.time})


app = hr.App("tasks", home=home, checkpoint_interval="20ms")
messages = app.input("messages", COLUMNS, event_time="ts")
flows = app.task(
    Counting(),
    {"messages": messages.partition_by("member", id="by-member", partitions=2)},
    {
        "counted": {"member": pl.String, "n": pl.Int64, "last": pl.Int64},
        "quiet": {"member": pl.String, "n": pl.Int64, "ts": pl.Int64},
    },
    id="counting",
)
flows["counted"].send_to(app.output("counted"))
flows["quiet"].send_to(app.output("quiet"))

if __name__ == "__main__":
    print("running", flush=True)
    if len(sys.argv) > 2:
        app.run(master=sys.argv[2], containers=2, progress=False)
    else:
        app.run(local=True, progress=False)
    print("ended", flush=True)
