"""7. Bad input: choose what happens to a message that doesn't fit its input's schema.

``fail`` (the default) stops the app, ``skip`` drops the message and counts it, and ``dead_letter`` writes it with the
reason to an output.

It prints::

    fail:        the app stopped at offset 609 of log.temperatures[0]
    skip:        [20, 22]
    dead_letter: [20, 22]
      bath  warm: column 'celsius' should be Int64, found 'warm' (String)
      attic 22.5: column 'celsius' should be Int64, found 22.5 (Float64)
"""

from tempfile import TemporaryDirectory

import polars as pl

import headrace as hr

SCHEMA = {"room": pl.String, "celsius": pl.Int64}


def run(policy: str, home: str) -> list[int]:
    app = hr.App(f"rooms-{policy}", home=home)
    letters = "unreadable" if policy == "dead_letter" else None
    rooms = app.input("temperatures", SCHEMA, on_error=policy, dead_letter=letters)
    rooms.send_to(f"measured-{policy}")
    app.run(local=True, progress=False)
    return hr.streams.read_stream(f"measured-{policy}", home=home)["celsius"].to_list()


with TemporaryDirectory() as home:
    hr.streams.create_stream("temperatures", partitions=1, home=home)  # without columns it takes any rows
    with hr.streams.StreamWriter("temperatures", home=home) as writer:
        writer.write([{"room": "hall", "celsius": 20}])
        writer.write([{"room": "bath", "celsius": "warm"}])
        writer.write([{"room": "attic", "celsius": 22.0}, {"room": "attic", "celsius": 22.5}])
        writer.seal()

    try:
        run("fail", home)
    except hr.errors.DataError as error:
        where = error.message.split(":")[0].split(" at ")
        print(f"fail:        the app stopped at {where[1]} of {where[0]}")
    print("skip:       ", run("skip", home))
    print("dead_letter:", run("dead_letter", home))
    for letter in hr.streams.read_stream("unreadable", home=home).to_dicts():
        row = pl.read_ipc_stream(letter["raw"])  # the rows as they came
        print(f"  {row['room'][0]:5} {row['celsius'][0]}: {letter['reason'].split(': ', 1)[1]}")
