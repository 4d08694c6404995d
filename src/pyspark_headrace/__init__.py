"""Spark looks for modules of this name, and so finds the format ``headrace`` where Headrace is installed.

Where Headrace can't be imported (a Python that lacks what it needs), the module has no source: an error here would keep
Spark from finding those of other packages.
"""

from contextlib import suppress

with suppress(ImportError):
    from headrace.spark.source import HeadraceDataSource as DefaultSource

__all__ = ["DefaultSource"]
