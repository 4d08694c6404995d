"""How a run is, for people: as a line, as a table in a notebook, and its metrics as a DataFrame."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from html import escape
from typing import Any

import msgspec
import polars as pl
from typing_extensions import override

from headrace.runners.coordination.messages import AppState, AppStatus, Series
from headrace.runners.progress import describe, lag_of, time_of

_TITLES = ("stage", "tasks", "msg/s", "watermark", "lag")


@dataclass(frozen=True, slots=True, repr=False)
class RunStatus:
    """How a run was at one moment. ``str`` is a line, and a notebook shows a table.

    ``state`` is one of ``"starting"``, ``"running"``, ``"draining"``, ``"finished"``, ``"stopped"`` and ``"failed"``.
    ``error`` is what made the app fail.

    Examples
    --------
    >>> run.status()
    RunStatus(shop finished  0 msg/s  sales done)
    """

    app: str
    state: AppState
    error: BaseException | None = None
    _found: AppStatus | None = field(default=None, compare=False)

    def to_dict(self) -> dict[str, Any]:
        """Return everything that is known, as ``headrace status --json`` prints it. Empty before the app runs.

        Returns
        -------
        dict

        Examples
        --------
        >>> [stage["name"] for stage in run.status().to_dict()["stages"]]
        ['sales']
        """
        data: dict[str, Any] = {} if self._found is None else msgspec.to_builtins(self._found)
        return data

    @override
    def __str__(self) -> str:
        line = f"{self.app} {self.state}"
        if self._found is not None and self.state == self._found.state:
            line = describe(self._found)
        return line if self.error is None else f"{line}: {self.error}"

    @override
    def __repr__(self) -> str:
        return f"RunStatus({self})"

    def _repr_html_(self) -> str:
        """The status in a notebook."""
        pieces = [f"<p><b>{escape(self.app)}</b> {escape(self._how)}</p>"]
        if self._found is not None and self.state != "failed":
            rows = [_TITLES, *self._rows(self._found)]
            cells = ("".join(f"<td>{escape(cell)}</td>" for cell in row) for row in rows)
            pieces.append(f'<table style="text-align: left">{"".join(f"<tr>{row}</tr>" for row in cells)}</table>')
        if self.error is not None:
            pieces.append(f"<pre>{escape(str(self.error))}</pre>")
        return f"<div>{''.join(pieces)}</div>"

    @property
    def _how(self) -> str:
        drained = self._found is not None and self._found.drained and self.state == "finished"
        return "drained" if drained else self.state

    @staticmethod
    def _rows(found: AppStatus) -> Iterator[tuple[str, ...]]:
        for stage in found.stages:
            done = f" ({stage.finished} done)" if stage.finished else ""
            rate, watermark = f"{stage.rows_per_second:,.0f}", time_of(stage.watermark)
            yield stage.name, f"{stage.tasks}{done}", rate, watermark, lag_of(stage.lag)


def table_of_series(series: Sequence[Series]) -> pl.DataFrame:
    """A row for each series, and a column for each label."""
    labels = list(dict.fromkeys(label for one in series for label in one.labels if label != "app"))
    columns: dict[str, pl.Series] = {
        "name": pl.Series([one.name for one in series], dtype=pl.String),
        "kind": pl.Series([one.kind for one in series], dtype=pl.String),
        **{label: pl.Series([one.labels.get(label) for one in series], dtype=pl.String) for label in labels},
        "value": pl.Series([one.value for one in series], dtype=pl.Float64),
        "buckets": pl.Series([one.buckets or None for one in series], dtype=pl.List(pl.Int64)),
    }
    return pl.DataFrame(columns)
