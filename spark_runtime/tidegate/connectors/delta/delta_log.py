"""A Delta table's transaction log, read and appended to with delta-rs (`deltalake`).

Source: PROTOCOL.md of delta-io/delta, "Transaction Identifiers": the snapshot holds the latest version for each
application id, which need not grow. delta-rs does not refuse a version that is there already; it refuses an append when
an entry newer than the table handle it was made with has the same application id.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from tidegate.connectors.delta.delta_schema import check_table, delta_schema
from tidegate.connectors.storage import sync_to_disk
from tidegate.errors import OutageError, PipelineError
from tidegate.jobs.secrets import MASK, resolve_secrets

if TYPE_CHECKING:
    from deltalake import DeltaTable
    from deltalake.transaction import AddAction

S3_PROTOCOLS = ("s3", "s3a")
MAX_CAUSE_CHARACTERS = 500
"""Characters of an error of delta-rs that are told."""

_S3_NAMES = {
    "key": "aws_access_key_id",
    "secret": "aws_secret_access_key",
    "token": "aws_session_token",
    "profile": "aws_profile",
    "endpoint_url": "aws_endpoint_url",
    "client_kwargs.endpoint_url": "aws_endpoint_url",
    "client_kwargs.region_name": "aws_region",
    "client_kwargs.aws_access_key_id": "aws_access_key_id",
    "client_kwargs.aws_secret_access_key": "aws_secret_access_key",
    "client_kwargs.aws_session_token": "aws_session_token",
}
"""s3fs's names of what says where and as whom, and delta-rs's."""
_OF_TRANSFERS = frozenset(
    {"use_listings_cache", "default_block_size", "default_fill_cache", "default_cache_type", "max_concurrency"}
)
"""Options of s3fs that mean nothing to the log."""
_SECRET_NAMES = ("aws_access_key_id", "aws_secret_access_key", "aws_session_token")
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")
_FRAMES = re.compile(r"\n\s*0: .*", re.DOTALL)


def require_deltalake(url: str) -> None:
    """Raise PipelineError, naming the extra, when `deltalake` is not installed."""
    try:
        import deltalake  # noqa: F401
    except ImportError as e:
        raise PipelineError(
            "The Delta sink needs the package deltalake",
            where=url,
            cause=str(e),
            remedy="Install tidegate[delta], on the driver and on the workers",
        ) from e


def log_options(url: str, storage_options: Mapping[str, Any]) -> dict[str, str]:
    """fsspec's storage options in delta-rs's words; references to secrets are resolved here.

    Raises:
        PipelineError: neither a local path nor S3, or an option with no counterpart.
    """
    protocol = url.partition("://")[0] if "://" in url else "file"
    if protocol in ("file", "local"):
        return {}
    if protocol not in S3_PROTOCOLS or "::" in url:
        raise PipelineError(
            "Delta tables are written to local folders and S3 only", where=url, remedy="Use a path or s3://bucket/path"
        )
    given = dict(resolve_secrets(storage_options))
    for inner, value in dict(given.pop("client_kwargs", None) or {}).items():
        given[f"client_kwargs.{inner}"] = value
    # Creating an entry only if it is absent is what the log rests on.
    made = {"aws_conditional_put": "etag"}
    for name, value in given.items():
        if value is None or name in _OF_TRANSFERS:
            continue
        if name == "anon":
            made["aws_skip_signature"] = str(bool(value)).lower()
        elif name in _S3_NAMES:
            made[_S3_NAMES[name]] = str(value)
        else:
            raise PipelineError(
                f"The Delta sink does not know the storage option {name!r}",
                where=url,
                cause=f"known are anon, {', '.join(_S3_NAMES)}",
                remedy="Leave it out, or say it by environment variables (AWS_...), which the log's reader knows, too",
            )
    if made.get("aws_endpoint_url", "").startswith("http://"):
        made["aws_allow_http"] = "true"
    return made


class DeltaLog:
    """One table's log. Every call reads it anew; from any thread; may block.

    Args:
        url: the table's folder as the user named it, for messages.
        location: the same as delta-rs opens it.
        options: of `log_options`.
        stored: columns of the records, of `stored_schema`.
        partition_by: partition columns.
    """

    def __init__(
        self, url: str, location: str, options: Mapping[str, str], stored: pa.Schema, partition_by: Sequence[str]
    ) -> None:
        self._url = url
        self._location = location
        self._options = dict(options)
        self._stored = stored
        self._partition_by = list(partition_by)

    def find(self) -> DeltaTable | None:
        """The table as it is now; None when there is none.

        Raises:
            PipelineError: it cannot be read, or these records do not fit it.
        """
        from deltalake import DeltaTable
        from deltalake.exceptions import DeltaError, TableNotFoundError

        try:
            table = DeltaTable(self._location, storage_options=self._options)
        except TableNotFoundError:
            return None
        except (DeltaError, OSError) as e:
            raise PipelineError(
                "The Delta table cannot be read",
                where=self._url,
                cause=self.told(e),
                remedy="Check the path, the access rights and storage_options",
            ) from None
        check_table(table, self._stored, self._partition_by, self._url)
        return table

    def find_or_create(self) -> DeltaTable:
        """The table as it is now, made when there is none. Two may make it at once: one does."""
        from deltalake import CommitProperties, DeltaTable
        from deltalake.exceptions import DeltaError

        table = self.find()
        if table is not None:
            return table
        problem = "it was removed at once"
        try:
            DeltaTable.create(
                self._location,
                schema=delta_schema(self._stored),
                partition_by=self._partition_by,
                storage_options=self._options,
                # Else delta-rs, when beaten to version 0, writes its protocol and metadata once more, as version 1.
                commit_properties=CommitProperties(max_commit_retries=0),
            )
        except (DeltaError, OSError) as e:
            # Somebody else may have made it, or this one may have, unheard.
            problem = self.told(e)
        table = self.find()
        if table is None:
            raise OutageError(
                "The Delta table cannot be created", where=self._url, cause=problem, remedy="Check the access rights"
            )
        return table

    def append(
        self, table: DeltaTable, application: str, version: int, files: Sequence[AddAction], told: Mapping[str, str]
    ) -> str | None:
        """One entry that adds the files and sets the application's version, as a successor of what `table` shows.

        Returns:
            None: it is in the log. Else what went wrong: an entry of the same application came in between, or the
            answer is unclear. Then look again: it may be in the log all the same.
        """
        from deltalake import CommitProperties, Transaction
        from deltalake.exceptions import DeltaError

        before = table.version()
        try:
            table.create_write_transaction(
                list(files),
                mode="append",
                schema=table.schema(),
                partition_by=self._partition_by,
                commit_properties=CommitProperties(
                    app_transactions=[Transaction(application, version)], custom_metadata=dict(told)
                ),
            )
            self._make_durable(table, before)
        except (DeltaError, OSError) as e:
            return self.told(e)
        return None

    def _make_durable(self, table: DeltaTable, before: int) -> None:
        """delta-rs does not wait for a local disk."""
        if self._options:
            return
        table.update_incremental()
        folder = os.path.join(self._location, "_delta_log")
        for version in range(before + 1, table.version() + 1):
            with suppress(FileNotFoundError):
                sync_to_disk(os.path.join(folder, f"{version:020}.json"))
        sync_to_disk(folder)

    def told(self, error: Exception) -> str:
        """The error's own words, on one line, without stack frames and secrets."""
        text = " ".join(_FRAMES.sub("", _COLOURS.sub("", str(error))).split())
        for name in _SECRET_NAMES:
            if self._options.get(name):
                text = text.replace(self._options[name], MASK)
        return text[:MAX_CAUSE_CHARACTERS]
