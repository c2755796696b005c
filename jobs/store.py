"""The files under a table's folder, whether the log names them or not, on a disk or in an object store; and what it means for a
job that the store failed.
"""

import hashlib
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from deltalake.exceptions import CommitFailedError
from pyarrow import fs

from jobs.errors import JobError, RetryError, UsageError

LOG = "_delta_log"


@dataclass(frozen=True, kw_only=True, slots=True)
class Stored:
    """A file as the store shows it."""

    path: str
    """Relative to the folder."""
    size: int
    modified: datetime


_NO_PLACE = (
    *("PermissionDenied", "Permission denied", "NotFound", "NotADirectory", "Not a directory", "ReadOnlyFilesystem", "Read-only"),
    *("AccessDenied", "NoSuchBucket", "InvalidAccessKeyId", "SignatureDoesNotMatch", "403 Forbidden"),
    *("ACCESS_DENIED", "NO_SUCH_BUCKET", "INVALID_ACCESS_KEY_ID", "SIGNATURE_DOES_NOT_MATCH"),
)
"""How the messages of delta-rs and of Arrow say that a place is missing or closed to us: they have no exceptions for that."""

_STORE = re.compile(
    r"Object Store error|Generic (?!Delta|delta)\w+ error|Error performing [A-Z]+ |\(os error \d+\)|Os \{ code: \d+"
)
"""How delta-rs says, in exceptions that may mean anything, that it was the store. To it, a table on a disk that fails is none."""

_COLOUR = re.compile(r"\x1b\[\d*m")


def failed(failure: BaseException, what: str) -> JobError:
    """A store's failure as the job's: a place that is missing or closed is for a person to mend, all else may pass."""
    said = " ".join(_COLOUR.sub("", str(failure)).split())
    if any(word in said for word in _NO_PLACE):
        return UsageError(
            f"{what} ({said}): the lake must be a place that this user may read and write. Correct PENSTOCK_LAKE, or its rights."
        )
    return RetryError(f"{what} ({said}). Is the store up, and has it room? Try again.")


@contextmanager
def asked(what: str) -> Iterator[None]:
    """Whatever the store fails at meanwhile is raised as the job's failure; `what` says what could not be done.

    What is no failure of the store stays as it is: a commit lost to a neighbour, a file that is gone, a query that is wrong.
    """
    try:
        yield
    except (JobError, CommitFailedError, FileNotFoundError):
        raise
    except Exception as failure:
        said = str(failure)
        if not isinstance(failure, OSError) and (not _STORE.search(said) or "No such file or directory" in said):
            raise
        raise failed(failure, what) from failure


def place(uri: str) -> tuple[fs.FileSystem, str]:
    """The file system of a URI, and the path in it."""
    if "://" in uri:
        with asked(f"{uri} could not be reached"):
            filesystem, base = fs.FileSystem.from_uri(uri)
        return filesystem, base.rstrip("/")
    return fs.LocalFileSystem(), str(Path(uri))


def files(uri: str) -> Iterator[Stored]:
    """All files under a folder; none where there is no folder."""
    filesystem, base = place(uri)
    with asked(f"the files of {uri} could not be listed"):
        found = filesystem.get_file_info(fs.FileSelector(base, recursive=True, allow_not_found=True))
    for info in found:
        if info.type == fs.FileType.File:
            yield Stored(path=info.path[len(base) + 1 :], size=info.size, modified=info.mtime or datetime.now(UTC))


def folders(uri: str) -> list[str]:
    """The names of the folders right under a folder; none where there is no folder."""
    filesystem, base = place(uri)
    with asked(f"the folders of {uri} could not be listed"):
        found = filesystem.get_file_info(fs.FileSelector(base, allow_not_found=True))
    return sorted(info.base_name for info in found if info.type == fs.FileType.Directory)


def data_files(table_uri: str) -> list[Stored]:
    """A table's Parquet files: those that it holds, those that it held, and those that nobody committed."""
    return [one for one in files(table_uri) if one.path.endswith(".parquet") and not one.path.startswith("_")]


def state(uri: str) -> str:
    """A digest of a folder's Parquet files as they stand, by name, size and time: 16 hexadecimal digits."""
    told = sorted(f"{one.path} {one.size} {one.modified.isoformat()}" for one in data_files(uri))
    return hashlib.sha256("\n".join(told).encode()).hexdigest()[:16]


def size(table_uri: str, path: str) -> int:
    """The bytes of a table's file; 0 where it is gone."""
    filesystem, base = place(table_uri)
    with asked(f"{table_uri}/{path} could not be looked at"):
        return int(filesystem.get_file_info(f"{base}/{path}").size or 0)


def read(uri: str, path: str) -> bytes | None:
    """What a file under a folder holds; None where there is none."""
    filesystem, base = place(uri)
    try:
        with asked(f"{uri}/{path} could not be read"), filesystem.open_input_stream(f"{base}/{path}") as stream:
            return bytes(stream.read())
    except FileNotFoundError:
        return None


def delete(table_uri: str, path: str) -> None:
    """Delete a table's file; one that is gone is fine."""
    filesystem, base = place(table_uri)
    try:
        with asked(f"{table_uri}/{path} could not be deleted"):
            filesystem.delete_file(f"{base}/{path}")
    except FileNotFoundError:
        return
