"""Errors of input files, which name them."""

from __future__ import annotations

import errno
import gzip
import lzma
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager

import pyarrow as pa

from tidegate.errors import PipelineError

_LASTING = (FileNotFoundError, PermissionError, IsADirectoryError, NotADirectoryError, gzip.BadGzipFile)


@contextmanager
def with_file_name(path: str) -> Iterator[None]:
    """Turns errors of opening, decompressing and reading into ones that name the file: a PipelineError, or an OSError
    where another try may go well."""
    try:
        yield
    except EOFError as e:
        raise PipelineError(
            "a compressed file ends too early", where=path, cause=one_line(e), remedy="Bring the whole file"
        ) from e
    except (zlib.error, lzma.LZMAError, zipfile.BadZipFile) as e:
        raise PipelineError(
            "a compressed file is damaged", where=path, cause=one_line(e), remedy="Bring the file again"
        ) from e
    except (pa.ArrowException, KeyError) as e:
        raise PipelineError(
            "Cannot read this file", where=path, cause=one_line(e), remedy="Check format=, schema= and columns="
        ) from e
    except OSError as e:
        raise as_os_error(path, e) from e


def as_os_error(path: str, error: OSError) -> PipelineError | OSError:
    """What an error of the operating system, or of a client of an object store, becomes. One that may pass stays what
    it is, with the name of the file: another try may go well (S9.1)."""
    is_plain = type(error) is OSError and error.errno is None  # as decompressors raise it
    if is_plain or isinstance(error, _LASTING):
        return PipelineError(
            "Cannot open this file",
            where=path,
            cause=one_line(error),
            remedy="Check that it is there, whole and readable",
        )
    return OSError(error.errno or errno.EIO, f"{type(error).__name__}: {one_line(error)}", path)


def one_line(error: BaseException) -> str:
    """The text of an error, on one line."""
    return " ".join(str(error).split())


def truncated_file_error(path: str, there: int, read: int) -> PipelineError:
    """A restored position is beyond the end. Args: there, read: bytes or rows."""
    return PipelineError(
        "an input file is shorter than what was read of it",
        where=path,
        cause=f"it ends at {there:,} where {read:,} had been read",
        remedy="Bring the file back, or start without the snapshot",
    )
