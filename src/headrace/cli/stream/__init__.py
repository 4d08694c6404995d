"""The verbs of ``headrace stream``, and the reading and writing behind them."""
