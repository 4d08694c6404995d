"""Chaos: a real app on real Spark keeps losing processes, and its committed output must not show it.

Three stages with shuffles and state run under load in a driver process of their own (``workload``, ``deployment``).
Every few seconds there is a fault (``faults``): containers, executors or drivers are killed, or are frozen and wake up
after they were replaced. Then the input is sealed, the app ends by itself, and its committed output is compared with
what Polars computes from the same messages (``verdict``). ``python -m chaos --seconds 60`` runs it.

A seed fixes the messages and the order of the faults. But faults happen in real time, so two runs with the same seed
are similar, not equal. For exact replays use the simulator, ``simulator``.
"""
