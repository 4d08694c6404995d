"""The files of a path, their format, and their partitions."""

from __future__ import annotations

from pathlib import Path

from headrace.core.errors import DeclarationError, StreamNotFoundError

SUFFIXES = {
    ".parquet": "parquet", ".pq": "parquet",
    ".jsonl": "jsonl", ".ndjson": "jsonl", ".json": "jsonl",
    ".csv": "csv",
}  # fmt: skip
FORMATS = ("parquet", "jsonl", "csv")


def find_files(path: str) -> list[Path]:
    """The files of a file name, a folder or a pattern, sorted. The list may be empty.

    A folder has all files of known formats below it. Names that begin with ``.`` or ``_`` are skipped: they are those
    of unfinished files and markers.
    """
    place = Path(path)
    if place.is_file():
        return [place]
    if place.is_dir():
        found = (file for file in place.rglob("*") if file.suffix.lower() in SUFFIXES)
        return sorted(file for file in found if file.is_file() and not _hidden(file.relative_to(place)))
    base = Path(place.anchor)
    named = base.glob(str(place.relative_to(place.anchor))) if path else iter(())
    return sorted(file for file in named if file.is_file() and not _hidden(Path(file.name)))


def _hidden(relative: Path) -> bool:
    return any(part.startswith((".", "_")) for part in relative.parts)


def require_files(path: str) -> list[Path]:
    """As ``find_files``, but raises ``StreamNotFoundError`` if there are none."""
    files = find_files(path)
    if files:
        return files
    if Path(path).is_dir():
        raise StreamNotFoundError(
            f"no files to read in the folder {path}", hint=f"known endings: {', '.join(SUFFIXES)}"
        )
    raise StreamNotFoundError(
        f"no file, folder or pattern {path} (relative to {Path.cwd()})",
        hint="check the path; on a cluster it has to be reachable from every executor",
    )


def format_of(files: list[Path], given: str | None) -> str:
    """The format of all files; raises ``DeclarationError`` if it is unknown, or if they have several."""
    if given is not None:
        return given
    formats = {SUFFIXES.get(file.suffix.lower()) for file in files}
    if None in formats:
        odd = next(file for file in files if file.suffix.lower() not in SUFFIXES)
        raise DeclarationError(f"the format of {odd} isn't known from its name", hint=f"give format=, one of {FORMATS}")
    if len(formats) > 1:
        raise DeclarationError(
            f"files of several formats in one input: {', '.join(sorted(str(name) for name in formats))}",
            hint="give format=, or a pattern such as data/*.parquet",
        )
    return str(formats.pop())


def deal(files: list[Path], partitions: int | None) -> list[list[Path]]:
    """The files of each partition: one each, or dealt in the order of their names."""
    if partitions is None:
        return [[file] for file in files]
    return [files[number::partitions] for number in range(partitions)]
