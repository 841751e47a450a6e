"""What file sinks tell of the files that a transaction has staged (S7.8)."""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import unquote

from tidegate.connectors.files.sink.hive_partitions import NULL_FOLDER
from tidegate.connectors.files.sink.sink_layout import FileLayout, parse_staged_name
from tidegate.connectors.transactions import Committable, parse_transaction_id
from tidegate.jobs.client.staged_data import StagedData, StagedFile, files_staged


def staged_files(url: str, layout: FileLayout, uid: str, checkpoint_id: int, handle: Committable) -> StagedData:
    """The transaction's files, all of one format. Args: url: of the sink's folder, as the user gave it."""
    subtask = parse_transaction_id(handle.transaction_id).subtask
    files, suffix = [], ""
    for file in handle.data["files"]:
        suffix = suffix_of(file["staged"])
        path = url.rstrip("/") + layout.staged(file["staged"], subtask)[len(layout.root) :]
        partition = file.get("partition")
        values = partition if partition is not None else partition_of(file.get("folder", ""))
        files.append(StagedFile(path, file["rows"], file.get("bytes"), values))
    return files_staged(uid, checkpoint_id, suffix, files)


def suffix_of(staged: str) -> str:
    """The suffix that the file will have once published, from its first dot on; empty for what is none of ours."""
    name = parse_staged_name(staged)
    return name.suffix if name is not None else ""


def partition_of(folder: str) -> Mapping[str, str | None]:
    """The values in a folder's name, `day=2026-11-21/shop=7/`."""
    pairs = (part.partition("=") for part in folder.split("/") if part)
    return {unquote(name): None if value == NULL_FOLDER else unquote(value) for name, _, value in pairs}
