"""21. A low-level task: report carts that were filled and abandoned, and stop on request.

A window can't notice that nothing happened. A task keeps each member's cart in a store, and with each item sets a timer
for half an hour of event time later; paying deletes both. The app is stopped in the middle and started again: carts and
timers are still there.

It prints::

    run 1: nobody yet
    run 2: ann left 2 items worth 7.50 at 12:33
    run 2: cem left 1 items worth 12.00 at 13:10
"""

from datetime import UTC, datetime, timedelta
from tempfile import TemporaryDirectory
from typing import Any

import polars as pl

import headrace as hr

CLICKS = {"member": pl.String, "action": pl.String, "euros": pl.Float64, "ts": pl.Datetime("ms")}


class AbandonedCarts(hr.tasks.Task):
    carts = hr.tasks.Store(key={"member": pl.String}, value={"items": pl.Int64, "euros": pl.Float64})

    def __init__(self, after: timedelta) -> None:
        self.after = after

    def process(self, message: dict[str, Any], out: hr.tasks.Out) -> None:
        member = message["member"]
        if message["action"] == "stop":
            out.shutdown()
        elif message["action"] == "pay":
            self.carts.delete(member)
            out.delete_timer(member)
        else:
            cart = self.carts.get(member) or {"items": 0, "euros": 0.0}
            self.carts.put(member, {"items": cart["items"] + 1, "euros": cart["euros"] + message["euros"]})
            out.set_timer(member, message["ts"] + self.after)

    def on_timer(self, timer: hr.tasks.Timer, out: hr.tasks.Out) -> None:
        at = datetime.fromtimestamp(timer.time / 1000, UTC).replace(tzinfo=None)
        out.send("abandoned", {"member": timer.key, "ts": at, **self.carts.get(timer.key)})
        self.carts.delete(timer.key)


def click(member: str, action: str, euros: float, minute: int) -> dict[str, Any]:
    return {"member": member, "action": action, "euros": euros, "ts": datetime(2026, 1, 1, 12, minute)}


def run(number: int, home: str, clicks: list[dict[str, Any]], *, seal: bool = False) -> None:
    with hr.streams.StreamWriter("clicks", home=home) as writer:
        writer.write(clicks)
        if seal:
            writer.seal()

    app = hr.App("carts", home=home)
    by_member = app.input("clicks", CLICKS, event_time="ts").partition_by("member", id="clicks-by-member")
    flows = app.task(
        AbandonedCarts(after=timedelta(minutes=30)),
        inputs={"clicks": by_member},
        outputs={"abandoned": {"member": pl.String, "items": pl.Int64, "euros": pl.Float64, "ts": pl.Datetime("ms")}},
        id="abandoned-carts",
    )
    flows["abandoned"].send_to("abandoned")
    app.run(local=True, progress=False)

    left = hr.streams.read_stream("abandoned", home=home).sort("ts").to_dicts()
    for cart in left:
        items = f"{cart['items']} items worth {cart['euros']:.2f}"
        print(f"run {number}: {cart['member']} left {items} at {cart['ts']:%H:%M}")
    if not left:
        print(f"run {number}: nobody yet")


with TemporaryDirectory() as home:
    hr.streams.create_stream("clicks", partitions=1, schema=CLICKS, home=home)
    first = [click("ann", "add", 5.0, 0), click("bob", "add", 9.0, 1), click("ann", "add", 2.5, 3)]
    run(1, home, [*first, click("", "stop", 0.0, 3)])
    run(2, home, [click("bob", "pay", 0.0, 20), click("cem", "add", 12.0, 40)], seal=True)
