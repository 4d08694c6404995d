"""Streams of the embedded log from Python: create them, write rows, read them.

For generators, tests, notebooks, and programs that use an app's results; apps use ``App.input`` and ``App.output``.
"""

from headrace.streams.reader import StreamReader, read_stream
from headrace.streams.writer import StreamWriter, add_columns, create_stream

__all__ = ["StreamReader", "StreamWriter", "add_columns", "create_stream", "read_stream"]
