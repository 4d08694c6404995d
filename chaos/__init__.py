"""Chaos: a real app on real Spark loses processes all the time, and its committed output must not show it.

Three stages with shuffles and state run under load in a driver of their own (``workload``, ``deployment``). Every
few seconds something goes wrong (``faults``): containers, executors and drivers are killed, or are frozen and wake up
after others took their place. Then the input is sealed, the app ends by itself, and what it has committed is compared
with what Polars makes of the same messages (``verdict``). ``python -m chaos --seconds 60`` runs it.

A seed fixes the messages and the order of the faults; what the faults meet is real time, so a run with the same seed
is alike, not the same. For exact replays there is the simulator, ``simulator``.
"""
