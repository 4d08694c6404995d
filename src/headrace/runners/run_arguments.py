"""The arguments of ``App.run`` and ``App.start``, checked before anything begins."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Self

from headrace.core.errors import UsageError
from headrace.plan.heritage import NO_CONSENT, Consent, consent_of
from headrace.runners.coordination.endpoint import ADVERTISE_VARIABLE, AS_USUAL, LISTEN_VARIABLE, Wanted


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """How to run an app. ``stages`` limits the run to these; empty means all. ``savepoint`` is taken at the end.

    ``beside``: code of this process goes on meanwhile, and may run Spark jobs of its own.

    ``wanted`` says where the coordinator listens and is called, if not on loopback, or on a cluster where Spark's
    driver is.
    """

    local: bool = False
    master: str | None = None
    containers: int | None = None
    conf: Mapping[str, str] = field(default_factory=dict)
    stages: Sequence[str] = ()
    consent: Consent = NO_CONSENT
    savepoint: str = ""
    wanted: Wanted = AS_USUAL
    beside: bool = False

    @classmethod
    def of(
        cls,
        local: bool,
        master: str | None,
        containers: int | None,
        conf: Mapping[str, str] | None,
        stages: Sequence[str] | None,
        drop_state: Sequence[str],
        rename: Mapping[str, str] | None,
        listen: str | None,
        advertise: str | None,
        savepoint: str = "",
        *,
        beside: bool = False,
    ) -> Self:
        """The arguments of ``App.run`` or ``App.start``. Raises for those that can't be."""
        check_options(master, containers, stages, conf)
        if savepoint and stages:
            raise UsageError(
                "a savepoint covers the whole app, but this run has only some of its stages",
                hint="run all stages, or take the savepoint while they run: headrace savepoint create",
            )
        environment = os.environ.get
        return cls(
            local=local,
            master=master,
            containers=containers,
            conf=conf or {},
            stages=stages or (),
            consent=consent_of(drop_state, rename or {}),
            savepoint=savepoint,
            wanted=Wanted.of(listen or environment(LISTEN_VARIABLE), advertise or environment(ADVERTISE_VARIABLE)),
            beside=beside,
        )


def check_kind_of_run(*, batch: bool, backfill: bool, until: str | None, again: bool, tables: object) -> None:
    """Raise for options that have no meaning together, or for this kind of run."""
    if batch and backfill:
        raise UsageError(
            "a batch job ends, but a run that begins with a backfill goes on", hint="choose one: batch= or backfill="
        )
    if again and not batch:
        raise UsageError("again= is for batch jobs", hint="add batch=True")
    if until is not None and not (batch or backfill):
        raise UsageError("until= is for batch jobs", hint="write batch=True, or backfill=True to go on live")
    if tables and not backfill:
        raise UsageError("tables= gives the history for a backfill", hint="add backfill=True")


def check_not_connect(session: object = None) -> None:
    """Raise for a session of Spark Connect, or a process that has one: only a driver can host containers."""
    remote = "SPARK_CONNECT_MODE_ENABLED" in os.environ or "SPARK_REMOTE" in os.environ
    local = "SPARK_LOCAL_REMOTE" in os.environ  # the server is in this process, and has a SparkContext
    if type(session).__module__.startswith("pyspark.sql.connect") or (remote and not local):
        raise UsageError(
            "this process reaches Spark through Spark Connect, which has no SparkContext: containers and batch jobs of "
            "Headrace can't run there. Streams can be read and written as DataFrames",
            hint="run the app with local=True, or from a driver: with spark-submit, or in a process without "
            "SPARK_REMOTE "
            'and builder.remote(...), with master="spark://host:7077"',
        )


def refuse(
    what: str,
    containers: object,
    stages: object,
    local: bool,
    savepoint: str,
    listen: object = None,
    advertise: object = None,
) -> None:
    """Raise for what is given and has no meaning for ``what``."""
    given = {"containers": containers, "stages": stages, "local": local or None, "savepoint": savepoint or None}
    given |= {"listen": listen, "advertise": advertise}
    for name, value in given.items():
        if value is not None:
            raise UsageError(f"{name}= doesn't apply to {what}")


def check_options(master: object, containers: object, stages: object, conf: object) -> None:
    """Raise for options that would otherwise fail deep inside Spark."""
    if master is not None and not isinstance(master, str):
        raise UsageError(f"master={master!r} is not a Spark master", hint='write master="local[2]"')
    if containers is not None and type(containers) is not int:
        raise UsageError(f"containers={containers!r} is not a number of containers", hint="write containers=2")
    if stages is not None and (isinstance(stages, str) or not isinstance(stages, Sequence)):
        raise UsageError(f"stages={stages!r} is not a list of stages", hint=f"write stages=[{stages!r}]")
    if conf is not None and not isinstance(conf, Mapping):
        raise UsageError(f"conf={conf!r} has no keys", hint='write conf={"spark.executor.memory": "4g"}')
