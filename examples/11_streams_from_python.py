"""11. Streams from Python: create, write with a key, read and seal them, and see some errors.

For generators, notebooks and tests; no app is needed. The command line can do the same: ``headrace stream --help``.

It prints::

    wrote 4 rows to partitions [0, 1]
    read 4 rows
    read 4 rows in a batch
    new rows: [[('bob', 4.0)]]
    DataError: if one row doesn't fit, none of its batch is written
    StreamNotFoundError: did you mean orders?
    StreamSealedError: nothing can be written to a sealed stream
"""

from tempfile import TemporaryDirectory

import polars as pl

import headrace as hr

with TemporaryDirectory() as home:
    hr.streams.create_stream("orders", partitions=2, schema={"member": pl.String, "euros": pl.Float64}, home=home)

    with hr.streams.StreamWriter("orders", key="member", home=home) as writer:
        upcoming = writer.write(pl.DataFrame({"member": ["ann", "bob", "eve", "ann"], "euros": [5.0, 7.5, 1.0, 2.0]}))
        print("wrote 4 rows to partitions", sorted(upcoming))
        print("read", hr.streams.read_stream("orders", home=home).height, "rows")
        reader = hr.streams.StreamReader("orders", home=home)
        for batch in reader:
            print("read", batch.height, "rows in a batch")
        position = reader.position()  # a string, to be stored with the results

        writer.write([{"member": "bob", "euros": 4.0}])
        later = hr.streams.StreamReader("orders", from_position=position, home=home)
        print("new rows:", [batch.rows() for batch in later])

        try:
            writer.write([{"member": "ann", "euros": 3.0}, {"member": "bob", "euros": "three"}])
        except hr.errors.DataError:
            assert hr.streams.read_stream("orders", home=home).height == 5
            print("DataError: if one row doesn't fit, none of its batch is written")

        try:
            hr.streams.read_stream("order", home=home)
        except hr.errors.StreamNotFoundError as error:
            print("StreamNotFoundError:", error.hint)

        writer.seal()
        try:
            writer.write([{"member": "ann", "euros": 1.0}])
        except hr.errors.HeadraceError as error:
            print(f"{type(error).__name__}: nothing can be written to a sealed stream")
