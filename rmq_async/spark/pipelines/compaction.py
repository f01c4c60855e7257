"""Rewrites small files of an archive into large ones, while no query writes to it.

Each micro-batch of an archive adds a file for each topic, date and task. With every tenth micro-batch by default, Spark's file
sink adds a ``.compact`` file to its log. This file lists the files of all micro-batches up to that one, and readers follow the
list. Therefore, the compaction first writes new files that no list names, and then replaces the list by one rename. Readers see
the old files before the rename and the new files after it, never both, even if this process ends at any point. The old files
are kept for running readers. A later run deletes files that no list names (``KEPT``).

The compaction needs a file system that renames atomically over an existing file, such as HDFS and local file systems. Object
stores need their own committers, and are refused by their scheme.
"""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from time import time
from typing import Final, NamedTuple

from pyspark.sql import SparkSession

from rmq_async.errors import ConfigError
from rmq_async.spark.pipelines.files import Files
from rmq_async.spark.pipelines.job import PipelineError

SMALL: Final = 32 * 1024 * 1024
"""Size in bytes below which a file is small."""
LARGE: Final = 128 * 1024 * 1024
"""Approximate size in bytes of a file that small files are combined into."""
KEPT: Final = 24 * 3600.0
"""Seconds for which a file that no list names is kept, because a reader may still use it, or a micro-batch may be about to list
it.
"""
STAGING: Final = "_compacting"
VERSION: Final = "v1"
_WRITTEN: Final = re.compile(r"/topic=[^/]+/date=[^/]+/(part|compacted)-[^/]+\.parquet\Z")
"""Matches the end of the path of a file that an archive or a compaction has written. ``_delete_old`` deletes no other files."""
_ATOMIC: Final = frozenset({"", "file", "hdfs", "viewfs"})
_OTHER_SPARK: Final = "this release cannot compact archives of that Spark; use a newer one, or archive without compacting"


class Entry(NamedTuple):
    """A file in the log of Spark's sink.

    Attributes:
        line: The file's line in the log, which is JSON.
    """

    uri: str
    size: int
    line: str

    @property
    def directory(self) -> str:
        return self.uri.rpartition("/")[0]


@dataclass(frozen=True, kw_only=True)
class Compacted:
    """The result of one run, in numbers of files.

    Attributes:
        before: Small files that were rewritten.
        after: Files into which the small files were combined.
        deleted: Files of earlier runs and of failed attempts that no list names and that were deleted.
    """

    before: int = 0
    after: int = 0
    deleted: int = 0


def compact(spark: SparkSession, path: str, ddl: str) -> Compacted:
    """Rewrite the small files of the archive at ``path``.

    Args:
        ddl: The columns of the archive without the partition columns, as DDL.

    Raises:
        ConfigError: For a session of Spark Connect, for a store that is not known to rename files atomically, and for a log in
            an unknown form.
        PipelineError: If the rewritten files hold a different number of rows.
    """
    files = Files(spark)
    check_store(path, files.scheme(path))
    log = f"{path.rstrip('/')}/_spark_metadata"
    names = files.names(log) or ()
    name = newest_list(names)
    if name is None:
        return Compacted()
    listed = entries_of(files.text(f"{log}/{name}"))
    later = [entry for each in names_after(names, name) for entry in entries_of(files.text(f"{log}/{each}"))]
    deleted = _delete_old(files, path, (*listed, *later))
    made: list[Entry] = []
    replaced: set[str] = set()
    for directory, small in small_files(listed).items():
        made += _rewritten(spark, files, path, directory, small, ddl)
        replaced |= {entry.uri for entry in small}
    if not replaced:
        return Compacted(deleted=deleted)
    rest = [entry for entry in listed if entry.uri not in replaced]
    files.replace(f"{log}/{name}", log_text([*rest, *made]))
    return Compacted(before=len(replaced), after=len(made), deleted=deleted)


def check_store(path: str, scheme: str) -> None:
    """Raise ConfigError for the scheme of a store that is not known to rename files atomically."""
    if scheme not in _ATOMIC:
        raise ConfigError(
            f"{path} cannot be compacted: a store {scheme} is not known to rename files atomically; archive without compacting "
            "(--compact)"
        )


def newest_list(names: Iterable[str]) -> str | None:
    """Return the name of the newest ``.compact`` file in the log. Return None if there is none yet."""
    lists = [name for name in names if re.fullmatch(r"[0-9]+\.compact", name)]
    return max(lists, key=_number, default=None)


def names_after(names: Iterable[str], newest: str) -> list[str]:
    """Return the names of the log files of micro-batches after ``newest``, the newest ``.compact`` file."""
    return [name for name in names if re.fullmatch(r"[0-9]+", name) and int(name) > _number(newest)]


def _number(name: str) -> int:
    return int(name.partition(".")[0])


def entries_of(text: str) -> list[Entry]:
    """Parse a file of the log. It has a line for the version and a line for each file.

    Raises:
        ConfigError: For an unknown version, and for a line that does not add a file.
    """
    version, *lines = text.splitlines() or ("",)
    if version != VERSION:
        raise ConfigError(f"the log of Spark's sink has version {version!r}, not {VERSION!r}; {_OTHER_SPARK}")
    entries = []
    for line in lines:
        try:
            data = json.loads(line)
            entry, action = Entry(str(data["path"]), int(data["size"]), line), data["action"]
        except (ValueError, LookupError, OverflowError, RecursionError, TypeError):
            raise ConfigError(
                f"the log of Spark's sink must name path, size and action of each file, not {line[:200]!r}; {_OTHER_SPARK}"
            ) from None
        if action != "add":
            raise ConfigError(f"the log of Spark's sink holds an action {action!r}, not only 'add'; {_OTHER_SPARK}")
        entries.append(entry)
    return entries


def log_text(entries: Iterable[Entry]) -> str:
    """Return the text from which ``entries_of`` parses these entries."""
    return "\n".join([VERSION, *(entry.line for entry in entries)])


def small_files(listed: Sequence[Entry]) -> dict[str, list[Entry]]:
    """Return the small files by directory, for directories that have two or more small files."""
    found: dict[str, list[Entry]] = {}
    for entry in listed:
        if entry.size < SMALL:
            found.setdefault(entry.directory, []).append(entry)
    return {directory: small for directory, small in found.items() if len(small) > 1}


def _rewritten(spark: SparkSession, files: Files, path: str, directory: str, small: Sequence[Entry], ddl: str) -> list[Entry]:
    """Write the rows of the files, in order, to new files in the same directory, and return the new files. No list names them
    yet.
    """
    run = uuid.uuid4().hex
    staging = f"{path.rstrip('/')}/{STAGING}/{run}"
    count = -(-sum(entry.size for entry in small) // LARGE)
    frame = spark.read.schema(ddl).option("recursiveFileLookup", "true").parquet(*(files.plain(entry.uri) for entry in small))
    order = ("brokerName", "queueId", "offset")
    made = []
    try:
        frame.repartitionByRange(count, *order).sortWithinPartitions(*order).write.parquet(staging)
        rows, wanted = spark.read.schema(ddl).parquet(staging).count(), frame.count()
        if rows != wanted:
            raise PipelineError(
                f"the new files of {directory} hold {rows} rows, not {wanted}; {path} still lists the old files, run it again"
            )
    except BaseException:
        files.delete(staging)
        raise
    for name in files.names(staging) or ():
        if name.startswith("part-"):
            target = f"{directory}/compacted-{run}-{name}"
            files.move(f"{staging}/{name}", files.plain(target))
            size, changed = files.size_and_time(files.plain(target))
            line = json.dumps(json.loads(small[0].line) | {"path": target, "size": size, "modificationTime": changed})
            made.append(Entry(target, size, line))
    files.delete(staging)
    return made


def may_be_deleted(name: str) -> bool:
    """Return whether the name has the form that an archive or a compaction gives to its files."""
    return _WRITTEN.search(name) is not None


def _delete_old(files: Files, path: str, listed: Iterable[Entry]) -> int:
    """Delete Parquet files that have the name of an archive's file, that no list names, and that are older than ``KEPT``.
    Return their number.

    Delete nothing if a listed file is not found, because the names in the list then differ from the names in the store, for
    example after the archive was moved.
    """
    known = {files.plain(entry.uri) for entry in listed}
    there = files.parquet_below(path)
    before = (time() - KEPT) * 1000
    old = [name for name, changed in there.items() if name not in known and changed < before and may_be_deleted(name)]
    if not known <= there.keys():
        return 0
    for name in old:
        files.delete(name)
    return len(old)
