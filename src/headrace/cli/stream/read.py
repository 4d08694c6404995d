"""``headrace stream read``."""

from __future__ import annotations

import select
import sys
from collections.abc import Sequence
from contextlib import closing
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from headrace.cli.console import Exit, counted, print_error, print_note
from headrace.cli.options import HOME, AsJson, Home, Metadata, OfApp, Partition, StreamName

if TYPE_CHECKING:
    from headrace.cli.place import Place
    from headrace.core.errors import FrameError
    from headrace.core.ids import SSP
    from headrace.runners.interrupts import Interrupt
    from headrace.streams.frames import Gate
    from headrace.systems.base import Consumer, Position

_REASONS_MAX = 10


def read(
    name: StreamName,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Wait for more rows until the stream is sealed or you press Ctrl-C.")
    ] = False,
    committed: Annotated[
        bool, typer.Option("--committed", help="Show a row only once its checkpoint is committed.")
    ] = False,
    start: Annotated[
        list[str] | None,
        typer.Option(
            "--from",
            metavar="POSITION",
            help="Start at oldest (the default), upcoming, OFFSET or PARTITION:OFFSET; may be given several times.",
        ),
    ] = None,
    time: Annotated[
        str | None,
        typer.Option(
            "--time",
            metavar="T",
            help="Start with the rows written at this time: ISO 8601 (UTC if it names no zone), or ms since the epoch.",
        ),
    ] = None,
    ago: Annotated[
        str | None, typer.Option("--ago", metavar="D", help="Start with the rows written in the last 90m, 2h or 1d.")
    ] = None,
    partition: Partition = None,
    limit: Annotated[int | None, typer.Option("--limit", "-n", metavar="N", help="Stop after N lines.")] = None,
    control: Annotated[
        bool, typer.Option("--control", help="Also show control frames (watermarks, end of stream, checkpoints).")
    ] = False,
    offsets: Annotated[
        bool, typer.Option("--offsets", help="Add @partition and @offset, as --from takes them, to each row.")
    ] = False,
    strict: Annotated[
        bool, typer.Option("--strict", help="Stop at a record that can't be read, instead of showing the others.")
    ] = False,
    app: OfApp = None,
    home: Home = HOME,
    metadata: Metadata = None,
    as_json: AsJson = False,
) -> None:
    """Print a stream as JSON lines.

    Reads to the present end or, with --follow, as the stream grows. The rows of one partition are in order; rows of
    different partitions are interleaved. If a record can't be read, the command says so, shows the others, and exits
    with 1.
    """
    from headrace.cli.place import locate
    from headrace.cli.stream.lines import Lines
    from headrace.core.errors import UsageError
    from headrace.runners.interrupts import Interrupt
    from headrace.streams.frames import FrameReader, refuse

    del as_json  # the option exists for scripts; the command prints JSON lines anyway
    if limit is not None and limit < 1:
        raise UsageError(f"--limit {limit}: expected a number of at least 1")
    place = locate(name, home, metadata, app)
    starts = _starts(place, start or (), time, ago, partition)
    unreadable = _Unreadable()
    damaged = refuse if strict else unreadable.add
    lines = Lines(place.require().columns, control=control, offsets=offsets, limit=limit, damaged=damaged)
    gate = _gate(committed)
    output = sys.stdout.buffer
    with Interrupt() as interrupt:
        reader = FrameReader(
            place.system,
            place.stream,
            gate,
            partial(_wait, interrupt, _descriptor()),
            follow=follow,
            enough=lambda: interrupt.requested,
            damaged=damaged,
        )
        with closing(reader.read(starts)) as batches:
            for frames in batches:
                output.write(lines.of(frames))
                output.flush()
                if lines.full:
                    break
    if gate.held and not lines.full:
        print_note(f"not shown, because not committed yet: {counted(gate.held, 'frame')}")
    if unreadable.count:
        left_out = f"{counted(unreadable.count, 'record')} of {place.stream} can't be read"
        print_error(f"{left_out}; the others are shown", hint="headrace stream verify checks the files of a log")
        raise typer.Exit(Exit.FAILED)
    if not lines.rows and lines.others and not control:
        print_note(
            f"{place.stream} has no rows, but {counted(lines.others, 'control frame')}: use --control to show them"
        )


class _Unreadable:
    """Counts the records that can't be read, and says why the first ones can't."""

    def __init__(self) -> None:
        self.count = 0

    def add(self, error: FrameError) -> None:
        self.count += 1
        if self.count <= _REASONS_MAX:
            print_error(error.message, error.hint)


def _starts(
    place: Place, start: Sequence[str], time: str | None, ago: str | None, partition: int | None
) -> dict[SSP, Position]:
    """Return where to start in each partition."""
    from headrace.cli.stream.positions import positions, positions_at
    from headrace.core.errors import UsageError
    from headrace.systems.base import Edge

    if time is None and ago is None:
        found = positions(place, "--from", start, partition)
        return {ssp: Edge.OLDEST if position is None else position for ssp, position in found.items()}
    if start:
        raise UsageError(
            f"--from and --{'time' if ago is None else 'ago'} both give a position", hint="leave one of them out"
        )
    return positions_at(place, time, ago, partition)


def _gate(committed: bool) -> Gate:
    from headrace.streams.frames import CommittedGate, OpenGate

    return CommittedGate() if committed else OpenGate()


def _wait(interrupt: Interrupt, output_fd: int | None, consumer: Consumer) -> bool:
    """Wait for more rows or for an interrupt. Returns False if the output was closed."""
    from headrace.streams.frames import UNWATCHED_WAIT_MS, WAIT_MS

    poll = select.poll()
    poll.register(interrupt.fd, select.POLLIN)
    source = consumer.fileno()
    if source is not None:
        poll.register(source, select.POLLIN)
    if output_fd is not None:
        # poll reports a closed output even though no event is requested.
        poll.register(output_fd, 0)
    ready = poll.poll(UNWATCHED_WAIT_MS if source is None else WAIT_MS)
    return all(fd != output_fd for fd, _ in ready)


def _descriptor() -> int | None:
    """Return the descriptor of stdout; None if it has none (a buffer in a test)."""
    try:
        return sys.stdout.fileno()
    except OSError:
        return None
