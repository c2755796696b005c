"""The files under a table's folder, whether the log names them or not, on a disk or in an object store."""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from pyarrow import fs

LOG = "_delta_log"


@dataclass(frozen=True, kw_only=True, slots=True)
class Stored:
    """A file as the store shows it."""

    path: str
    """Relative to the folder."""
    size: int
    modified: datetime


def place(uri: str) -> tuple[fs.FileSystem, str]:
    """The file system of a URI, and the path in it."""
    if "://" in uri:
        filesystem, base = fs.FileSystem.from_uri(uri)
        return filesystem, base.rstrip("/")
    return fs.LocalFileSystem(), str(Path(uri))


def files(uri: str) -> Iterator[Stored]:
    """All files under a folder; none where there is no folder."""
    filesystem, base = place(uri)
    for info in filesystem.get_file_info(fs.FileSelector(base, recursive=True, allow_not_found=True)):
        if info.type == fs.FileType.File:
            yield Stored(path=info.path[len(base) + 1 :], size=info.size, modified=info.mtime or datetime.now(UTC))


def data_files(table_uri: str) -> list[Stored]:
    """A table's Parquet files: those that it holds, those that it held, and those that nobody committed."""
    return [one for one in files(table_uri) if one.path.endswith(".parquet") and not one.path.startswith("_")]


def size(table_uri: str, path: str) -> int:
    """The bytes of a table's file; 0 where it is gone."""
    filesystem, base = place(table_uri)
    return int(filesystem.get_file_info(f"{base}/{path}").size or 0)


def read(uri: str, path: str) -> bytes | None:
    """What a file under a folder holds; None where there is none."""
    filesystem, base = place(uri)
    try:
        with filesystem.open_input_stream(f"{base}/{path}") as stream:
            return bytes(stream.read())
    except FileNotFoundError:
        return None


def delete(table_uri: str, path: str) -> None:
    """Delete a table's file; one that is gone is fine."""
    filesystem, base = place(table_uri)
    try:
        filesystem.delete_file(f"{base}/{path}")
    except FileNotFoundError:
        return
