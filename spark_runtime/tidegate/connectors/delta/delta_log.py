"""Transaction log of a Delta table, read and appended to with delta-rs (`deltalake`).

Source: PROTOCOL.md of delta-io/delta, "Transaction Identifiers": the snapshot holds the latest version for each
application id, which need not grow. delta-rs accepts a version that already exists. It refuses an append if the log has
an entry with the same application id that is newer than the table handle of the append.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from tidegate.connectors.delta.delta_schema import check_creatable, check_rewritable, check_table, delta_schema
from tidegate.connectors.storage import S3_PROTOCOLS, sync_to_disk
from tidegate.errors import MissingExtraError, OutageError, PipelineError
from tidegate.extras import installation
from tidegate.jobs.secrets import MASK, resolve_secrets

if TYPE_CHECKING:
    from deltalake import DeltaTable
    from deltalake.transaction import AddAction, CommitProperties, RemoveAction

MAX_CAUSE_CHARACTERS = 500
"""Most characters shown of a delta-rs error."""
TRANSACTION, TRANSACTIONS = "tidegateTransaction", "tidegateTransactions"
"""Keys in the `commitInfo` of an entry: the id of an append; the ids of an upsert, between blanks."""
REWIND = "tidegateRewound"
"""Key in the `commitInfo` of a rewind: the sink and the checkpoint that it kept, and the newest that it removed."""
UPSERTED = "tidegate-upserted:"
"""Begin of the application id of a sink's upserts. Its version is the checkpoint of the last one."""

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
"""s3fs's option names for place and credentials, with delta-rs's names."""
_OF_TRANSFERS = frozenset(
    {"use_listings_cache", "default_block_size", "default_fill_cache", "default_cache_type", "max_concurrency"}
)
"""Options of s3fs that do not concern the log."""
_SECRET_NAMES = ("aws_access_key_id", "aws_secret_access_key", "aws_session_token")
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")
_FRAMES = re.compile(r"\n\s*0: .*", re.DOTALL)


def require_deltalake(url: str) -> None:
    """Raise MissingExtraError with the name of the extra if `deltalake` is not installed."""
    try:
        import deltalake  # noqa: F401
    except ImportError as e:
        raise MissingExtraError(
            "the Delta sink needs the package deltalake",
            where=url,
            cause=str(e),
            remedy=f"Run `{installation('delta')}` on the driver and on the workers",
        ) from e


def log_options(url: str, storage_options: Mapping[str, Any]) -> dict[str, str]:
    """Return delta-rs's options for fsspec's storage options. Resolves references to secrets.

    Raises:
        PipelineError: neither a local path nor S3, or an option with no counterpart.
    """
    protocol = url.partition("://")[0] if "://" in url else "file"
    if protocol in ("file", "local"):
        return {}
    if protocol not in S3_PROTOCOLS or "::" in url:
        raise PipelineError(
            "the Delta sink can write only to local folders and S3, but the URL is of another kind",
            where=url,
            remedy="Use a path or s3://bucket/path",
        )
    given = dict(resolve_secrets(storage_options))
    for inner, value in dict(given.pop("client_kwargs", None) or {}).items():
        given[f"client_kwargs.{inner}"] = value
    # Two writers must never create the same entry: the log relies on "create if absent".
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
                f"the Delta sink does not support the storage option {name!r}",
                where=url,
                cause=f"supported options: anon, {', '.join(_S3_NAMES)}",
                remedy=f"Remove {name!r} from storage_options, or set the matching AWS_... environment variable "
                "on the driver and the slots",
            )
    if made.get("aws_endpoint_url", "").startswith("http://"):
        made["aws_allow_http"] = "true"
    return made


class DeltaLog:
    """Log of one table. Every call reads it again; from any thread; may block.

    Args:
        url: the table's folder as the user wrote it, for messages.
        location: the same folder in the form for delta-rs.
        options: result of `log_options`.
        stored: columns of the records, result of `stored_schema`.
        partition_by: partition columns.
        upserts: the sink also replaces and removes rows, which more tables do not permit.
    """

    def __init__(
        self,
        url: str,
        location: str,
        options: Mapping[str, str],
        stored: pa.Schema,
        partition_by: Sequence[str],
        *,
        upserts: bool = False,
    ) -> None:
        self._url = url
        self._location = location
        self._options = dict(options)
        self._stored = stored
        self._partition_by = list(partition_by)
        self._upserts = upserts

    def find(self) -> DeltaTable | None:
        """Return the table in its present state; None if it does not exist.

        Raises:
            PipelineError: the table cannot be read, or the records do not fit it.
        """
        table = self.opened()
        if table is not None:
            check_table(table, self._stored, self._partition_by, self._url)
            if self._upserts:
                check_rewritable(table, self._stored, self._url)
        return table

    def opened(self) -> DeltaTable | None:
        """Return the table as `find` does, whatever its columns and requirements are."""
        from deltalake import DeltaTable
        from deltalake.exceptions import DeltaError, TableNotFoundError

        try:
            return DeltaTable(self._location, storage_options=self._options)
        except TableNotFoundError:
            return None
        except (DeltaError, OSError) as e:
            raise PipelineError(
                "the Delta table cannot be read",
                where=self._url,
                cause=self.error_text(e),
                remedy="Check the path, the access rights and storage_options",
            ) from None

    def find_or_create(self) -> DeltaTable:
        """Return the table in its present state, and create it if needed. If two callers create it at once, one
        succeeds. Raises as `find`; PipelineError also if delta-rs cannot create such a table.
        """
        from deltalake import CommitProperties, DeltaTable
        from deltalake.exceptions import DeltaError

        table = self.find()
        if table is not None:
            return table
        check_creatable(self._stored, self._url)
        problem = "the table was removed immediately after its creation"
        try:
            DeltaTable.create(
                self._location,
                schema=delta_schema(self._stored),
                partition_by=self._partition_by,
                storage_options=self._options,
                # With retries, delta-rs would write its protocol and metadata again as version 1 when another writer
                # wins version 0.
                commit_properties=CommitProperties(max_commit_retries=0),
            )
        except (DeltaError, OSError) as e:
            # Another writer may have created it, or this one may have without receiving the answer.
            problem = self.error_text(e)
        table = self.find()
        if table is None:
            raise OutageError(
                "the Delta table cannot be created",
                where=self._url,
                cause=problem,
                remedy="Check that the user may write in the table's folder",
            )
        return table

    def append(
        self, table: DeltaTable, application: str, version: int, files: Sequence[AddAction], metadata: Mapping[str, str]
    ) -> str | None:
        """Append one entry that adds the files and sets the application's version, as a successor of `table`.

        Returns:
            None: the entry is in the log. Else the problem: an entry of the same application was appended since, or the
                answer is unclear. Then read the log again, because the entry may exist all the same.
        """
        from deltalake import CommitProperties, Transaction

        properties = CommitProperties(
            app_transactions=[Transaction(application, version)], custom_metadata=dict(metadata)
        )
        return self._commit(table, files, self._partition_by, properties)

    def change(
        self,
        table: DeltaTable,
        files: Sequence[AddAction | RemoveAction],
        applications: Mapping[str, int],
        metadata: Mapping[str, str],
    ) -> str | None:
        """Append one entry that adds and removes files and sets the versions of applications, as a successor of
        `table`.

        Returns as `append`, but it fails if any entry was appended since.
        """
        from deltalake import CommitProperties, Transaction

        properties = CommitProperties(
            app_transactions=[Transaction(name, version) for name, version in applications.items()],
            custom_metadata=dict(metadata),
            # delta-rs would retry, and does not notice that a compaction has removed the same files meanwhile.
            max_commit_retries=0,
        )
        return self._commit(table, files, list(table.metadata().partition_columns), properties)

    def _commit(
        self,
        table: DeltaTable,
        actions: Sequence[AddAction | RemoveAction],
        partition_by: Sequence[str],
        properties: CommitProperties,
    ) -> str | None:
        from deltalake.exceptions import DeltaError

        before = table.version()
        try:
            table.create_write_transaction(
                list(actions),
                mode="append",
                schema=table.schema(),
                partition_by=list(partition_by),
                commit_properties=properties,
            )
            self._make_durable(table, before)
        except (DeltaError, OSError) as e:
            return self.error_text(e)
        return None

    def _make_durable(self, table: DeltaTable, before: int) -> None:
        """Sync new log entries, because delta-rs does not sync files on a local disk."""
        # The options are empty only for local folders; object stores make an entry durable before they answer.
        if self._options:
            return
        table.update_incremental()
        folder = os.path.join(self._location, "_delta_log")
        for version in range(before + 1, table.version() + 1):
            # Another writer's cleanup of the log may have removed an entry meanwhile.
            with suppress(FileNotFoundError):
                sync_to_disk(os.path.join(folder, f"{version:020}.json"))
        sync_to_disk(folder)

    def error_text(self, error: Exception) -> str:
        """Return the error's text on one line, without stack frames and secrets."""
        text = " ".join(_FRAMES.sub("", _COLOURS.sub("", str(error))).split())
        for name in _SECRET_NAMES:
            if self._options.get(name):
                text = text.replace(self._options[name], MASK)
        return text[:MAX_CAUSE_CHARACTERS]
