"""What an app remembers of the streams that it reads in slots, in the metadata store.

The first run writes it into the driver's home (``systems/kinesis/memo.py``). From here it goes into the options of the
system, and so with the plan: containers, commands and the next driver may be on machines that haven't got that home.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from headrace.api.specs import Graph, StreamSpec
from headrace.core.errors import StorageError
from headrace.metadata.store import MetadataStore
from headrace.plan.model import Plan

FILE, CONTENTS = "memo", "remembered"
"""The options of a system: in which file it remembers something, and what it has remembered."""


def with_memos(metadata: MetadataStore, graph: Graph) -> Graph:
    """The graph, whose systems know what the app remembers."""
    known = {id_: entry.value.decode() for id_, entry in metadata.scan(_namespace(graph.app)).items()}
    return replace(
        graph,
        streams={id_: _told(spec, known[id_]) if id_ in known else spec for id_, spec in graph.streams.items()},
    )


def record_memos(metadata: MetadataStore, plan: Plan) -> Plan:
    """Record what the app remembers since its run has begun; return the plan with it."""
    namespace = _namespace(plan.graph.app)
    for id_, stream in plan.streams.items():
        options = stream.spec.system.options
        if FILE in options and CONTENTS not in options and (data := _read(Path(options[FILE]))) is not None:
            metadata.put_if(namespace, id_, data, None)  # another start may have been quicker, with the same
    graph = with_memos(metadata, plan.graph)
    streams = {id_: replace(stream, spec=graph.streams[id_]) for id_, stream in plan.streams.items()}
    return replace(plan, graph=graph, streams=streams)


def _told(spec: StreamSpec, contents: str) -> StreamSpec:
    if FILE not in spec.system.options:  # the input was of another system before
        return spec
    return replace(spec, system=replace(spec.system, options={**spec.system.options, CONTENTS: contents}))


def _read(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None  # these stages don't read it
    except OSError as error:
        raise StorageError(f"can't read {path}: {error}", hint="check who may read the folder") from error


def _namespace(app: str) -> str:
    return f"memos/{app}"
