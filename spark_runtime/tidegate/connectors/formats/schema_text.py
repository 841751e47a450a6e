"""Texts of schemas, from an argument or a file."""

from __future__ import annotations

from tidegate.connectors.storage import absolute_url, open_filesystem
from tidegate.errors import PipelineError, StoreError

MAX_SCHEMA_BYTES = 16 * 2**20
"""Largest file of a schema. A larger file is not a schema, and would fill the job's records."""


def read_schema_file(url: str, where: str) -> bytes:
    """Return the content of a local file, or of any fsspec URL.

    Raises:
        PipelineError: there is no such file, it cannot be read, or it is too large.
    """
    try:
        filesystem, path = open_filesystem(url, None)
        with filesystem.open(path, "rb") as file:
            content: bytes = file.read(MAX_SCHEMA_BYTES + 1)
    except (OSError, StoreError, ValueError) as error:
        raise PipelineError(
            "the file with the schema cannot be read",
            where=f"{where}: {url}",
            cause=f"{type(error).__name__}: {error}",
            remedy="Check the path, and that this machine can read it",
        ) from error
    if len(content) > MAX_SCHEMA_BYTES:
        raise PipelineError(
            "the file with the schema is too large",
            where=f"{where}: {url}",
            cause=f"the limit is {MAX_SCHEMA_BYTES} bytes",
            remedy="Check that it is the file of a schema",
        )
    return content


def schema_url(path: str) -> str:
    """Return the absolute path or URL of a file with a schema."""
    return absolute_url(path)
