"""A stream as a DataFrame of the Spark session that there is."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from headrace.spark.registering import register


def read_frame(name: str, *, committed: bool, home: Path) -> Any:
    """A DataFrame over a stream of the log in ``home``. Spark reads the rows when it is used, in its own processes."""
    session = _session()
    register(session, home)
    options = {"home": str(home.absolute()), "committed": str(committed).lower()}
    return session.read.format("headrace").options(**options).load(name)


def _session() -> Any:
    """The active session, of Spark Connect or of this driver; else a new one."""
    connect: Any = sys.modules.get("pyspark.sql.connect.session")
    if connect is not None and (session := connect.SparkSession.getActiveSession()) is not None:
        return session
    from headrace.runners.spark.session import open_session

    return open_session("headrace")
