"""The Spark settings that Headrace needs and prefers, and checks of those of a running session. Pure.

Containers are Spark tasks that run for weeks and are restarted one by one. By default Spark would end that: a task may
fail only four times (in local mode never), slow ones are started twice, and executors that lost tasks get no more.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from headrace.coordinator.address import LOOPBACK, ON_THIS_MACHINE, Endpoint
from headrace.core.errors import UsageError

FAILURES_MAX = 1_000_000
_FAILURES_ENOUGH = 100
Lookup = Callable[[str], str | None]
_LOCAL = re.compile(r"local(?:\[\s*(?P<slots>\*|\d+)\s*(?:,\s*(?P<failures>\d+)\s*)?\])?")
_LOCAL_CLUSTER = re.compile(r"local-cluster\[\s*(\d+)\s*,\s*(\d+)\s*,\s*(\d+)\s*\]")


@dataclass(frozen=True, slots=True)
class _Requirement:
    key: str
    value: str
    spark_default: str
    why: str
    is_met: Callable[[str], bool]


def _at_least_enough(value: str) -> bool:
    return value.isdigit() and int(value) >= _FAILURES_ENOUGH


def _is_false(value: str) -> bool:
    return value.strip().lower() == "false"


_REQUIREMENTS = (
    _Requirement(
        "spark.task.maxFailures", str(FAILURES_MAX), "4", "a container that is killed has to restart", _at_least_enough
    ),
    _Requirement("spark.speculation", "false", "false", "a container mustn't run twice at once", _is_false),
    _Requirement(
        "spark.excludeOnFailure.enabled", "false", "false", "an executor must take a lost container back", _is_false
    ),
    _Requirement(
        "spark.python.worker.killOnIdleTimeout", "false", "false", "a container sends nothing until it ends", _is_false
    ),
)

# Preferred. The user, spark-submit and spark-defaults.conf have precedence.
_PREFERENCES: Mapping[str, str] = {
    "spark.port.maxRetries": "64",  # one UI port for each app on this machine
    "spark.sql.catalogImplementation": "in-memory",
    "spark.python.worker.faulthandler.enabled": "true",
    "spark.python.task.killTimeout": "500ms",  # a cancelled container was ordered to stop long before
    # YARN and Kubernetes end an app after a few lost executors.
    "spark.executor.maxNumFailures": str(FAILURES_MAX),
}

_LOCAL_PREFERENCES: Mapping[str, str] = {
    "spark.driver.host": LOOPBACK,
    "spark.driver.bindAddress": LOOPBACK,
    "spark.python.daemon.module": "headrace_daemon",  # SIGTERM for every process mustn't end the containers
}


def check_master(master: str) -> None:
    """Raise ``UsageError`` for a master that Spark would refuse later and less clearly."""
    known = ("spark://", "yarn", "k8s://")
    if not (is_local(master) or is_local_cluster(master) or master.startswith(known)):
        raise UsageError(
            f"unknown Spark master {master!r}",
            hint="use local[N], local[*], local-cluster[executors,cores,MiB], spark://host:port, yarn or k8s://...",
        )
    standalone_addresses(master)
    if local_slots(master) == 0:
        raise UsageError(f"{master} has no slot", hint="use local[1] or more, or local[*]")


def standalone_addresses(master: str) -> list[tuple[str, int]]:
    """Host and port of each master of ``spark://host:port,host:port``; none for other masters."""
    if not master.startswith("spark://"):
        return []
    addresses = []
    for address in master.removeprefix("spark://").split(","):
        host, _, port = address.strip().rpartition(":")
        if not host or not (port.isascii() and port.isdigit()) or not 0 < int(port) < 1 << 16:
            raise UsageError(
                f"Spark master {master!r}: {address!r} isn't HOST:PORT",
                hint="write spark://host:7077, or spark://one:7077,other:7077 where several are on standby",
            )
        addresses.append((_without_brackets(host), int(port)))
    return addresses


def is_local(master: str) -> bool:
    return _LOCAL.fullmatch(master.strip()) is not None


def is_local_cluster(master: str) -> bool:
    return _LOCAL_CLUSTER.fullmatch(master.strip()) is not None


def is_on_this_machine(master: str) -> bool:
    return is_local(master) or is_local_cluster(master)


def local_slots(master: str) -> int | None:
    """How many tasks ``local[N]`` or ``local-cluster[n,cores,MiB]`` runs at once; None if the master doesn't say."""
    master = master.strip()
    if match := _LOCAL_CLUSTER.fullmatch(master):
        return int(match[1]) * int(match[2])
    if match := _LOCAL.fullmatch(master):
        slots = match["slots"] or "1"
        return None if slots == "*" else int(slots)
    return None


def is_standalone(master: str) -> bool:
    """Whether executors come from a standalone cluster: one for each worker, unless settings say otherwise."""
    return master.strip().startswith("spark://")


def grows(lookup: Lookup) -> bool:
    return lookup("spark.dynamicAllocation.enabled") == "true"


def slots_limit(master: str, lookup: Lookup) -> int | None:
    """How many tasks a session can run at once at most; None if its master and settings don't say."""
    cpus = int(lookup("spark.task.cpus") or 1)
    if match := _LOCAL_CLUSTER.fullmatch(master.strip()):
        return int(match[1]) * (int(match[2]) // cpus)
    if is_local(master):
        slots = local_slots(master)
        return None if slots is None else slots // cpus
    each = lookup("spark.executor.cores") or (None if is_standalone(master) else "1")
    if is_standalone(master) and not grows(lookup):
        most = lookup("spark.cores.max")
        if most is None or each is None:
            return None if most is None else int(most) // cpus
        executors = int(most) // int(each)
    else:
        said = lookup("spark.dynamicAllocation.maxExecutors" if grows(lookup) else "spark.executor.instances")
        if said is None or each is None:
            return None
        executors = int(said)
    return executors * (int(each) // cpus)


def with_retries(master: str) -> str:
    """The master with a number of failures: ``local[N,F]``. Without it local mode never restarts a failed task."""
    match = _LOCAL.fullmatch(master.strip())
    if match is None or match["failures"]:
        return master.strip()
    return f"local[{match['slots'] or '1'},{FAILURES_MAX}]"


def without_retries(master: str) -> str:
    return f"local[{local_slots(master) or '*'}]" if is_local(master) else "".join(master.split())


def retries_enough(master: str) -> bool:
    """Whether Spark starts a failed task again. Plain ``local[N]`` never does, whatever its other settings say."""
    match = _LOCAL.fullmatch(master.strip())
    return match is None or _at_least_enough(match["failures"] or "1")


def required() -> dict[str, str]:
    return {requirement.key: requirement.value for requirement in _REQUIREMENTS}


def preferred(master: str) -> dict[str, str]:
    return dict(_PREFERENCES) | (dict(_LOCAL_PREFERENCES) if is_on_this_machine(master) else {})


def executors_as_driver(submit_options: str) -> dict[str, str]:
    """Have the executors of ``local-cluster`` compile and collect as SPARK_SUBMIT_OPTS says of the driver."""
    options = [option for option in submit_options.split() if option.startswith(("-XX:", "-Xlog:"))]
    return {"spark.executor.extraJavaOptions": " ".join(options)} if options else {}


def driver_endpoint(master: str, lookup: Lookup) -> Endpoint:
    """Where the coordinator of a running session listens: on a cluster, where executors reach Spark's own driver."""
    if is_on_this_machine(master):
        return ON_THIS_MACHINE
    called = _without_brackets(lookup("spark.driver.host") or "")
    bound = _without_brackets(lookup("spark.driver.bindAddress") or "")
    return Endpoint(host=bound or called, advertised_host=called)


def _without_brackets(host: str) -> str:
    return host.removeprefix("[").removesuffix("]")


def wrong_settings(master: str, lookup: Lookup) -> list[str]:
    """Why containers can't run in a session with these settings: one line per setting, with its remedy."""
    wrong = []
    for requirement in _REQUIREMENTS:
        if is_local(master) and requirement.key == "spark.task.maxFailures":
            continue  # local mode reads the master instead, and ``ContainerJob`` makes up for it
        value = lookup(requirement.key)
        value = requirement.spark_default if value is None else value
        if not requirement.is_met(value):
            remedy = f'.config("{requirement.key}", "{requirement.value}")'
            wrong.append(f"{requirement.key} is {value}, but {requirement.why}: {remedy}")
    return wrong
