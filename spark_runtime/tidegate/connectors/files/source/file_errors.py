"""Errors of input files, with the name of the file."""

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
    """Convert errors of opening, decompressing and reading into errors that name the file.

    The result is a PipelineError, or an OSError if a retry may succeed.
    """
    try:
        yield
    except EOFError as e:
        raise PipelineError(
            "the compressed input file is incomplete", where=path, cause=one_line(e), remedy="Copy the whole file again"
        ) from e
    except (zlib.error, lzma.LZMAError, zipfile.BadZipFile) as e:
        raise PipelineError(
            "the compressed input file is damaged", where=path, cause=one_line(e), remedy="Copy the file again"
        ) from e
    except (pa.ArrowException, KeyError) as e:
        raise PipelineError(
            "the input file cannot be read in the declared format",
            where=path,
            cause=one_line(e),
            remedy="Check format=, schema= and columns= of the source",
        ) from e
    except OSError as e:
        raise as_os_error(path, e) from e


def as_os_error(path: str, error: OSError) -> PipelineError | OSError:
    """Convert an error of the operating system, or of an object store's client.

    An error that may be temporary stays an OSError, with the name of the file: a retry may succeed (S9.1).
    """
    is_plain = type(error) is OSError and error.errno is None  # decompressors raise such errors
    if is_plain or isinstance(error, _LASTING):
        return PipelineError(
            "the input file cannot be opened",
            where=path,
            cause=one_line(error),
            remedy="Check that the file exists, that it is complete, and that the user of the process may read it",
        )
    return OSError(error.errno or errno.EIO, f"{type(error).__name__}: {one_line(error)}", path)


def one_line(error: BaseException) -> str:
    """Return the text of an error on one line."""
    return " ".join(str(error).split())


def truncated_file_error(path: str, there: int, read: int) -> PipelineError:
    """Return the error for a restored position beyond the end. Args: there, read: bytes or rows."""
    return PipelineError(
        "the input file is shorter than when it was read before",
        where=path,
        cause=f"the file ends at position {there:,}, but the snapshot has read it to position {read:,}",
        remedy="Put the original file back, or start the job without the snapshot",
    )
