"""9. Split deployment: each stage runs as its own program, connected by the stream between them.

Both programs declare the whole app and run one stage of it. They may start in any order, and you can stop and
restart one while the other continues.

It prints::

    stage views: exit code 0
    stage by-member: exit code 0
    [('ann', 2), ('bob', 1)]
"""

import subprocess
import sys
from datetime import datetime
from tempfile import TemporaryDirectory

import polars as pl

import headrace as hr

SCHEMA = {"member": pl.String, "ts": pl.Datetime("ms")}
NOON = datetime(2026, 1, 1, 12)


def declare(home: str) -> hr.App:
    app = hr.App("split", home=home)
    views = app.input("views", SCHEMA, event_time="ts")
    counts = views.partition_by("member").window(hr.tumbling("1m")).agg(views=pl.len())
    counts.send_to("views-per-member")
    return app


def main() -> None:
    with TemporaryDirectory() as home:
        hr.streams.create_stream("views", partitions=2, schema=SCHEMA, home=home)
        stages = [stage.name for stage in declare(home).plan().stages]
        programs = {stage: subprocess.Popen([sys.executable, __file__, home, stage]) for stage in stages}

        with hr.streams.StreamWriter("views", home=home) as writer:
            writer.write([{"member": "ann", "ts": NOON}, {"member": "bob", "ts": NOON}])
            writer.write([{"member": "ann", "ts": NOON.replace(second=3)}])
            writer.seal()

        for stage, program in programs.items():
            print(f"stage {stage}: exit code {program.wait(timeout=60)}")
        print(hr.streams.read_stream("views-per-member", home=home).select("member", "views").sort("member").rows())


if __name__ == "__main__":
    if len(sys.argv) == 3:
        declare(sys.argv[1]).run(local=True, stages=[sys.argv[2]], progress=False)
    else:
        main()
