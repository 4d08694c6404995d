"""Two machines in a world: what one writes, the other doesn't see. Then something runs on one of them, to the end."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from chaos.world import OWN, World, enter

if __name__ == "__main__":
    seconds, *inside = sys.argv[1:]
    if not inside:
        enter("world_program", [seconds, "inside"])
    with tempfile.TemporaryDirectory() as folder, World(Path(folder), ("ann", "bob")) as world:
        ann, bob = world.machines.values()
        for machine in (ann, bob):
            said = machine.run("sh", "-c", f"hostname; echo > {OWN}/mine; ls {OWN}", seconds_max=30, environment={})
            print(said.split(), flush=True)
        ann.wipe()
        print([machine.run("ls", OWN, seconds_max=30, environment={}).split() for machine in (ann, bob)], flush=True)
        bob.run("sleep", seconds, seconds_max=300, environment={})
