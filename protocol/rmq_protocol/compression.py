"""Body compression: zlib is always available. lz4 and zstd need the extra ``compression``, which also installs isal, a faster zlib.

Decompression is bounded for any input (see ``decompress``). Output is read in steps of 1 MiB; one step is enough for nearly every
body. A larger body is read twice. The first pass only counts its size and keeps no output. If the body fits, the second pass reads
it into one buffer of that size. Therefore a decompression bomb costs 2 MiB and 7-11 ms (zlib, limit 16 MiB); if the output were
kept, it would cost 32 MiB and 33 ms. The sizes that are declared in a compressed body are not used.
"""

from __future__ import annotations

import sys
import threading
import zlib
from contextlib import suppress
from enum import IntEnum
from importlib import import_module
from importlib.util import find_spec
from io import BytesIO
from typing import Any, Final, Protocol

from .constants import COMPRESSION_TYPE_MASK, MAX_DECOMPRESSED_SIZE
from .errors import CorruptMessageError, LocalProtocolError, shown

__all__ = ["CompressionType", "compress", "compression_type", "decompress", "load"]


def _optional(name: str) -> Any:
    try:
        return import_module(name)
    except ImportError:
        return None


class _OnDemand:
    """A substitute for a module that is loaded at the first access to one of its attributes.

    Raises:
        LocalProtocolError: If the module cannot be loaded, for example because the process may open no more files.
    """

    __slots__ = ("_name",)

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, attribute: str) -> Any:
        try:
            module = import_module(self._name)
        except (ImportError, OSError) as error:
            reason = f"{self._name} is installed but cannot be loaded: {error}; repair it, or raise the limit of open files"
            raise LocalProtocolError(reason) from error
        return getattr(module, attribute)


def _installed(name: str) -> Any:
    """Return a module that is loaded on demand. Return None if its package is not installed.

    Loading zstandard takes 15 ms, and few programs use it.
    """
    return _OnDemand(name) if find_spec(name.partition(".")[0]) is not None else None


isal_zlib: Final = _optional("isal.isal_zlib")
lz4_frame: Final = _installed("lz4.frame")
zstandard: Final = _installed("zstandard")

_STEP: Final = 1 << 20
_MAX_FRAMES: Final = 64
_MIN_ZSTD_WINDOW: Final = 8 << 20  # RFC 8878 asks every decoder to support it
_ISAL_LEVEL: Final = 2
_ZLIB_LEVELS_ISAL_SERVES: Final = range(1, 7)


def load() -> None:
    """Load the installed modules, so that no later call opens a file.

    If a module cannot be loaded, this function ignores the error. The first use of the module tries again, and raises
    LocalProtocolError if that fails.
    """
    for module in (lz4_frame, zstandard):
        with suppress(LocalProtocolError):
            getattr(module, "__name__", None)


class CompressionType(IntEnum):
    """The algorithm of a compressed body. The values are the bits in ``sysFlag`` (``MessageSysFlag``)."""

    LZ4 = 0x100
    ZSTD = 0x200
    ZLIB = 0x300

    @classmethod
    def from_name(cls, name: str) -> CompressionType:
        """Return the type with the name ``name`` ("zlib", "lz4" or "zstd"). Case and surrounding whitespace are ignored.

        Raises:
            LocalProtocolError: If the name is unknown.
        """
        try:
            return cls[name.strip().upper()]
        except KeyError:
            raise LocalProtocolError(f"unknown compression type {name!r}: give zlib, lz4 or zstd") from None


_BY_BITS: Final = {0: CompressionType.ZLIB, **{kind.value: kind for kind in CompressionType}}


def compression_type(sys_flag: int) -> CompressionType:
    """Return the algorithm in the type bits of ``sysFlag``.

    If no type bits are set, the algorithm is zlib, because older senders do not set them (``CompressionType.findByValue``).

    Raises:
        CorruptMessageError: If the type is 4 to 7, which are not defined.
    """
    kind = _BY_BITS.get(sys_flag & COMPRESSION_TYPE_MASK)
    if kind is None:
        raise CorruptMessageError(
            f"unknown compression type {(sys_flag & COMPRESSION_TYPE_MASK) >> 8} in sysFlag {sys_flag:#x}; 0 to 3 are defined"
        )
    return kind


# --------------------------------------------------------------------------------------------------------------- compress


class _ZstdContexts(threading.local):
    """The zstd contexts of one thread: compressors by level, and decompressors by window size.

    Making a context takes 20 us, and threads must not share contexts.
    """

    def __init__(self) -> None:
        self.compressors: dict[int, Any] = {}
        self.decompressors: dict[int, Any] = {}


_contexts = _ZstdContexts()


def compress(data: bytes, kind: CompressionType, level: int = 5) -> bytes:
    """Return ``data`` as a zlib stream, an lz4 frame or a zstd frame that the Java client reads.

    Args:
        level: -1 to 9 for zlib, and at most 22 for zstd. lz4 ignores it. With isal, zlib levels 1 to 6 use isal's level 2, which is
            five times faster and has a ratio of 3.1 instead of 3.3.

    Raises:
        LocalProtocolError: If the level or the type does not exist, if ``data`` is not bytes-like, or if the library for ``kind``
            is not installed.
    """
    try:
        if kind == CompressionType.ZLIB:
            if isal_zlib is not None and level in _ZLIB_LEVELS_ISAL_SERVES:
                packed: bytes = isal_zlib.compress(data, _ISAL_LEVEL)
            else:
                packed = zlib.compress(data, level)
        elif kind == CompressionType.LZ4:
            if lz4_frame is None:
                raise LocalProtocolError(_missing("lz4", "lz4"))
            # The Java reader refuses linked blocks.
            packed = lz4_frame.compress(
                data, block_size=lz4_frame.BLOCKSIZE_MAX4MB, block_linked=False, store_size=False, return_bytearray=False
            )
        elif kind == CompressionType.ZSTD:
            if zstandard is None:
                raise LocalProtocolError(_missing("zstd", "zstandard"))
            packed = _zstd_compressor(level).compress(data)
        else:
            raise LocalProtocolError(f"unknown compression type {kind!r}; give a CompressionType")
    except _refused() as error:
        levels = "levels: -1 to 9 for zlib, at most 22 for zstd"
        raise LocalProtocolError(f"cannot compress with {shown(kind)} at level {shown(level)} ({levels}): {error}") from error
    return packed


def _zstd_compressor(level: int) -> Any:
    compressor = _contexts.compressors.get(level)
    if compressor is None:
        compressor = _contexts.compressors[level] = zstandard.ZstdCompressor(level=level)
    return compressor


def _missing(kind: str, package: str) -> str:
    return f"compression {kind} needs the package {package}, which is not installed: pip install 'rmq-async[compression]'"


# ------------------------------------------------------------------------------------------------------------- decompress


def decompress(data: bytes, kind: CompressionType, max_size: int = MAX_DECOMPRESSED_SIZE) -> bytes:
    """Return the decompressed body of at most ``max_size`` bytes.

    The function needs memory for the result plus 2 MiB, and for zstd also for its window (at most the larger of ``max_size`` and
    8 MiB).

    Raises:
        CorruptMessageError: If the body is larger; if ``data`` is damaged or truncated, or has a larger window (zstd) or more than
            64 frames (lz4); or if the library for ``kind`` is not installed.
        LocalProtocolError: If ``kind`` is unknown.
    """
    size = 0
    try:
        reader: _Reader = _READERS[kind](data, max_size)
        limit = min(max_size, _STEP)
        body = reader.read(limit + 1)
        if len(body) <= limit:
            return body
        size = len(body)
        del body
        while size <= max_size:
            step = reader.read(_STEP)
            if not step:
                return _read_exactly(_READERS[kind](data, max_size), size)
            size += len(step)
    except KeyError:
        raise LocalProtocolError(f"unknown compression type {kind!r}; give a CompressionType") from None
    except _damaged() as error:
        reason = f"compressed body of {len(data)} bytes cannot be decompressed: {error}"
        raise UnreadableBodyError(reason, min(size + _STEP, max_size)) from error
    raise UnreadableBodyError(
        f"compressed body of {len(data)} bytes would take more than {max_size} bytes, the limit for decompressed bodies "
        "(max_decompressed_size)",
        size,
        too_large=True,
    )


class UnreadableBodyError(CorruptMessageError):
    """The error of a body that cannot be decompressed.

    Args:
        produced: Upper bound of the bytes that were decompressed before the error.
        too_large: True if the body exceeds the limit.
        no_package: True if the compression needs a package that is not installed.
    """

    def __init__(self, message: str, produced: int, *, too_large: bool = False, no_package: bool = False) -> None:
        super().__init__(message, intact=too_large or no_package)
        self.produced = produced
        self.too_large = too_large


def _read_exactly(reader: _Reader, size: int) -> bytes:
    whole = BytesIO()
    whole.seek(size - 1)
    whole.write(b"\0")  # one allocation of the right size
    whole.seek(0)
    while step := reader.read(_STEP):
        whole.write(step)
    return whole.getvalue()


class _Reader(Protocol):
    """A reader of a compressed body.

    ``read(n)`` returns n bytes, fewer at the end of the body, and none after it. It raises one of the exceptions of ``_damaged`` if
    the compressed data are damaged or truncated.
    """

    def read(self, size: int, /) -> bytes: ...


class _Truncated(Exception):  # noqa: N818 - caught before it leaves this module
    pass


class _ZlibReader:
    """The reader for zlib. It ignores bytes after the end of the stream, as ``InflaterInputStream`` does."""

    __slots__ = ("_rest", "_stream")

    def __init__(self, data: bytes, max_size: int) -> None:
        self._stream: Any = (isal_zlib or zlib).decompressobj()
        self._rest = data

    def read(self, size: int, /) -> bytes:
        stream = self._stream
        output: bytes = stream.decompress(self._rest, size)
        self._rest = stream.unconsumed_tail
        if len(output) < size and not stream.eof:
            raise _Truncated("the zlib stream has no end")
        return output


class _Lz4Reader:
    """The reader for lz4.

    It reads at most 64 consecutive frames as one body (``LZ4FrameInputStream``), because it copies the remaining data for each
    frame.
    """

    __slots__ = ("_frames", "_rest", "_stream")

    def __init__(self, data: bytes, max_size: int) -> None:
        if lz4_frame is None:
            raise UnreadableBodyError(_missing("lz4", "lz4"), 0, no_package=True)
        self._stream: Any = lz4_frame.LZ4FrameDecompressor()
        self._rest = data
        self._frames = 1

    def read(self, size: int, /) -> bytes:
        output = b""
        while len(output) < size:
            stream = self._stream
            if stream.eof:
                self._rest = stream.unused_data or b""
                if not self._rest:
                    break
                self._frames += 1
                if self._frames > _MAX_FRAMES:
                    raise _Truncated(f"more than {_MAX_FRAMES} lz4 frames")
                stream = self._stream = lz4_frame.LZ4FrameDecompressor()
            step = stream.decompress(self._rest, size - len(output))
            self._rest = b""
            if not step and not stream.eof:
                raise _Truncated("the lz4 frame has no end")
            output = output + step if output else step
        return output


class _ZstdReader:
    """The reader for zstd.

    It reads consecutive frames as one body. It walks their blocks first, because the library does not report a truncated frame.
    """

    __slots__ = ("_stream",)

    def __init__(self, data: bytes, max_size: int) -> None:
        if zstandard is None:
            raise UnreadableBodyError(_missing("zstd", "zstandard"), 0, no_package=True)
        _check_zstd_frames(data)
        window = max(max_size, _MIN_ZSTD_WINDOW)
        decompressor = _contexts.decompressors.get(window)
        if decompressor is None:
            decompressor = _contexts.decompressors[window] = zstandard.ZstdDecompressor(max_window_size=window)
        self._stream = decompressor.stream_reader(data, read_across_frames=True)

    def read(self, size: int, /) -> bytes:
        output: bytes = self._stream.read(size)
        return output


_ZSTD_MAGIC: Final = b"\x28\xb5\x2f\xfd"
_DICTIONARY_ID_SIZES: Final = (0, 1, 2, 4)
_CONTENT_SIZE_SIZES: Final = (0, 2, 4, 8)
_RLE_BLOCK: Final = 1
_RESERVED_BLOCK: Final = 3


def _check_zstd_frames(data: bytes) -> None:
    """Walk frame headers and block headers (RFC 8878, 3.1.1). Raise ``_Truncated`` if the data are not complete frames."""
    position, end = 0, len(data)
    while True:
        magic = data[position : position + 4]
        if magic == _ZSTD_MAGIC and position + 5 <= end:
            position = _zstd_frame_end(data, position + 4)
        elif magic[1:] == b"\x2a\x4d\x18" and magic[0] & 0xF0 == 0x50:  # a skippable frame
            position += 8 + int.from_bytes(data[position + 4 : position + 8], "little")
        else:
            raise _Truncated(f"no zstd frame begins at byte {position}")
        if position == end:
            return
        if position > end:
            raise _Truncated("the zstd frame has no end")


def _zstd_frame_end(data: bytes, position: int) -> int:
    """Return the end of the frame whose header descriptor is at ``position``. The end may lie beyond the data."""
    end = len(data)
    descriptor = data[position]
    single_segment = descriptor >> 5 & 1
    content_size = _CONTENT_SIZE_SIZES[descriptor >> 6] or single_segment
    position += 2 - single_segment + _DICTIONARY_ID_SIZES[descriptor & 3] + content_size
    while position + 3 <= end:
        header = data[position] | data[position + 1] << 8 | data[position + 2] << 16
        kind = header >> 1 & 3
        if kind == _RESERVED_BLOCK:
            raise _Truncated(f"reserved zstd block type at byte {position}")
        position += 3 + (1 if kind == _RLE_BLOCK else header >> 3)
        if header & 1:
            return position + (4 if descriptor & 4 else 0)
    return end + 1


_READERS: Final[dict[int, Any]] = {
    CompressionType.ZLIB: _ZlibReader,
    CompressionType.LZ4: _Lz4Reader,
    CompressionType.ZSTD: _ZstdReader,
}
_DAMAGED: Final[tuple[type[Exception], ...]] = (
    _Truncated,
    zlib.error,
    RuntimeError,  # lz4 raises nothing more precise
    EOFError,
    *((isal_zlib.error,) if isal_zlib is not None else ()),
)


def _damaged() -> tuple[type[Exception], ...]:
    """Return the exceptions that damaged input raises.

    The exception of zstandard is included only if the module is loaded, because it cannot be raised before.
    """
    return (*_DAMAGED, zstandard.ZstdError) if sys.modules.get("zstandard") is not None and zstandard is not None else _DAMAGED


def _refused() -> tuple[type[Exception], ...]:
    return (*_damaged(), TypeError, ValueError, OverflowError)
