"""Messages of a kind that come for the first time, to several threads at once, as when containers start together."""

from __future__ import annotations

import subprocess
import sys

# Thirty kinds, each a part of the next one: to prepare the last one takes long enough for threads to meet.
PROGRAM = """
from __future__ import annotations
import sys, threading
from headrace.coordinator.messages import Message, decode

for n in range(30):
    part = f"Kind{n - 1}" if n else "int"
    fields = "".join(f"    f{m}: dict[str, list[{part if m == 9 else 'int'}]] | None = None\\n" for m in range(10))
    exec(f"from __future__ import annotations\\nclass Kind{n}(Message, frozen=True):\\n{fields}")

def read():
    together.wait()
    for n in (29, 28, 27):
        decode(globals()[f"Kind{n}"], b'{"version": 1, "f0": {"a": [1]}, "f9": {"b": [{"f9": {"c": []}}]}}')

sys.setswitchinterval(1e-6)
together = threading.Barrier(6)
threads = [threading.Thread(target=read) for _ in range(6)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
"""


def test_threads_that_read_the_first_message_of_a_kind_at_once_do_not_end_the_process() -> None:
    run = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=False)
    assert (run.returncode, run.stderr) == (0, "")
