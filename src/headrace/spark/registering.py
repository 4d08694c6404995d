"""Make the format ``headrace`` known to a Spark session."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from headrace.core.home import home_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def register(spark: SparkSession, home: str | Path | None = None) -> None:
    """Make the format ``headrace`` known to a Spark session.

    Spark finds it by itself where Headrace is installed. Registering also says where the log is, and on one machine
    which Python to start: the processes that Spark starts don't know the driver's folder and environment.

    Parameters
    ----------
    spark
        The session.
    home
        The folder of the log, for readers and writers without the option ``home``. By default the environment
        variable ``HEADRACE_HOME``, or ``.headrace``, with their present values.

    Examples
    --------
    >>> hr.spark.register(spark)
    >>> spark.read.format("headrace").load("orders").show()
    +------+-----+
    |member|euros|
    +------+-----+
    |   ann|  5.0|
    |   ann|  2.0|
    +------+-----+
    <BLANKLINE>
    """
    from headrace.runners.spark.session import prepare_session
    from headrace.spark.data_source import HeadraceDataSource

    prepare_session(spark)
    there = str(home_of(home).absolute())
    spark.dataSource.register(type("HeadraceDataSource", (HeadraceDataSource,), {"home": there}))
