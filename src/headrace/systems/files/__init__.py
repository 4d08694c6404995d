"""Files as a row system: bounded Parquet, JSON lines and CSV in, whole files out."""

from headrace.systems.files.system import FilesSystem, open_files

__all__ = ["FilesSystem", "open_files"]
