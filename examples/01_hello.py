"""1. Hello: declare an app that keeps slow requests, run it in this process, and read its results.

Declaring runs nothing; ``run`` does. The input is sealed, so it ends, and so does the app.

It prints::

    {'path': '/report', 'ms': 2300}
    {'path': '/search', 'ms': 1200}
"""

from tempfile import TemporaryDirectory

import headrace as hr

SCHEMA = {"path": str, "ms": int}


def declare(home: str) -> hr.App:
    app = hr.App("hello", home=home)
    requests = app.input("requests", SCHEMA)
    requests.filter("ms > 1000").send_to("slow")
    return app


with TemporaryDirectory() as home:
    hr.streams.create_stream("requests", partitions=1, schema=SCHEMA, home=home)
    with hr.streams.StreamWriter("requests", home=home) as writer:
        writer.write([{"path": "/", "ms": 12}, {"path": "/report", "ms": 2300}, {"path": "/search", "ms": 1200}])
        writer.seal()

    declare(home).run(local=True, progress=False)

    for row in hr.streams.read_stream("slow", home=home).to_dicts():
        print(row)
