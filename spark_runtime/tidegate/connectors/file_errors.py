"""Errors of input files, which name them."""

from __future__ import annotations

import lzma
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager

import pyarrow as pa

from tidegate.contract.errors import PipelineError


@contextmanager
def naming(path: str) -> Iterator[None]:
    """Turns errors of opening, decompressing and reading into ones that name the file."""
    try:
        yield
    except EOFError as e:
        raise PipelineError(
            "a compressed file ends too early", where=path, cause=line_of(e), remedy="Bring the whole file"
        ) from e
    except (zlib.error, lzma.LZMAError, zipfile.BadZipFile) as e:
        raise PipelineError(
            "a compressed file is damaged", where=path, cause=line_of(e), remedy="Bring the file again"
        ) from e
    except (pa.ArrowException, KeyError) as e:
        raise PipelineError(
            "Cannot read this file", where=path, cause=line_of(e), remedy="Check format=, schema= and columns="
        ) from e
    except OSError as e:
        raise PipelineError(
            "Cannot open this file", where=path, cause=line_of(e), remedy="Check that it is there, whole and readable"
        ) from e


def line_of(error: BaseException) -> str:
    """The text of an error, on one line."""
    return " ".join(str(error).split())


def shorter_than_before(path: str, there: int, read: int) -> PipelineError:
    """A restored position is beyond the end. Args: there, read: bytes or rows."""
    return PipelineError(
        "an input file is shorter than what was read of it",
        where=path,
        cause=f"it ends at {there:,} where {read:,} had been read",
        remedy="Bring the file back, or start without the snapshot",
    )
