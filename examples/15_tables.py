"""15. Tables: look up each message's key.

A side input keeps the table of members up to date. It is read to its end before the first view is processed, so no view
comes too early. Both are partitioned by the member, so each task has its own part of the table.

It prints::

    ann saw /lamp, from AT
    bob saw /desk, from DE
    eve saw /sofa, from an unknown country
"""

from tempfile import TemporaryDirectory

import polars as pl

import headrace as hr

MEMBERS = {"member": pl.String, "country": pl.String}
VIEWS = {"member": pl.String, "url": pl.String}

with TemporaryDirectory() as home:
    hr.streams.create_stream("members", partitions=2, schema=MEMBERS, key="member", home=home)
    with hr.streams.StreamWriter("members", home=home) as writer:
        writer.write([{"member": "ann", "country": "CH"}, {"member": "bob", "country": "DE"}])
        writer.write([{"member": "ann", "country": "AT"}])  # she has moved: the last row counts
    hr.streams.create_stream("views", partitions=2, schema=VIEWS, key="member", home=home)
    with hr.streams.StreamWriter("views", home=home) as writer:
        writer.write([{"member": "ann", "url": "/lamp"}, {"member": "bob", "url": "/desk"}])
        writer.write([{"member": "eve", "url": "/sofa"}])
        writer.seal()

    app = hr.App("located-views", home=home)
    members = app.table("members-now", key="member", side_inputs=app.input("members", MEMBERS))
    app.input("views", VIEWS).join(members, how="left").send_to("located")
    app.run(local=True, progress=False)  # it ends with the views, though the members haven't ended

    for row in hr.streams.read_stream("located", home=home).sort("member").to_dicts():
        print(f"{row['member']} saw {row['url']}, from {row['country'] or 'an unknown country'}")
