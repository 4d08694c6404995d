"""The side of a peer in its conversation with bench/peer.py. It runs in environments without Headrace."""

import sys


def do_jobs(name, run, reason=repr):
    """Tell the peer's name, then call ``run(work, source, target)`` for each line of standard input.

    ``reason`` makes one line of an error that ``run`` raises.
    """
    print(f"bench: ready {name}", flush=True)
    for line in sys.stdin:
        try:
            run(*line.split())
        except Exception as error:  # noqa: BLE001 - the other side tells it
            print(f"bench: failed {reason(error)}", flush=True)
        else:
            print("bench: done", flush=True)
