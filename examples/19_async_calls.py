"""19. Asynchronous calls: call a service for each view, many calls at once, and keep the order of results.

The service answers late, and in any order. A call that fails is repeated; a view whose call fails three times becomes a
dead letter. Results count once, but calls may be made more than once.

It prints::

    ann    /      AT
    bob    /cart  CH
    ann    /item  AT
    cleo   /      DE
    failed: eve, LookupError in the last of 3 attempts: no such member: 'eve'
    5 calls, 3 repeated, 1 given up
"""

import asyncio
import json

import polars as pl

import headrace as hr

COUNTRIES = {"ann": "AT", "bob": "CH", "cleo": "DE"}
VIEWS = [("ann", "/"), ("bob", "/cart"), ("eve", "/"), ("ann", "/item"), ("cleo", "/")]


class Service:
    """Stands for a client of yours: slow for some members, and down for a moment."""

    def __init__(self) -> None:
        self.down = True

    async def country(self, member: str) -> str:
        await asyncio.sleep(0.02 if member == "ann" else 0.001)
        if member == "bob" and self.down:
            self.down = False
            raise ConnectionError("the service is down")
        if member not in COUNTRIES:
            raise LookupError(f"no such member: {member!r}")
        return COUNTRIES[member]


service = Service()


async def locate(row: dict) -> dict:
    return row | {"country": await service.country(row["member"])}


app = hr.App("located")
views = app.input("views", {"member": pl.String, "url": pl.String})
views.map_async(
    locate,
    {"member": pl.String, "url": pl.String, "country": pl.String},
    concurrency=10,
    timeout="2s",
    retry=hr.calls.retry(attempts=3, first="10ms"),
    on_error="dead_letter",
    dead_letter="failed",
).send_to("located")

with app.test() as t:
    t.feed("views", [{"member": member, "url": url} for member, url in VIEWS])
    for row in t.read("located").to_dicts():
        print(f"{row['member']:5}  {row['url']:5}  {row['country']}")
    for letter in t.read("failed").to_dicts():
        print(f"failed: {json.loads(letter['row'])['member']}, {letter['reason']}")
    calls, repeated, failed = (t.counter(name) for name in ("calls", "call_retries", "call_failures"))
    print(f"{calls} calls, {repeated} repeated, {failed} given up")
