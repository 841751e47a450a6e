"""Staged files of a file sink's transaction: where they are, and how they move to quarantine (S7.8)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from urllib.parse import unquote

from fsspec import AbstractFileSystem

from tidegate.connectors.files.sink.hive_partitions import NULL_FOLDER
from tidegate.connectors.files.sink.sink_layout import FileLayout, parse_staged_name
from tidegate.connectors.quarantine import Quarantine
from tidegate.connectors.transactions import Committable, SinkContext, check_writer, parse_transaction_id
from tidegate.jobs.client.staged_data import StagedData, StagedFile, staged_files_of


def staged_files(url: str, layout: FileLayout, uid: str, checkpoint_id: int, handle: Committable) -> StagedData:
    """Return the transaction's files, all of one format. Args: url: the sink's folder, as the user passed it."""
    subtask = parse_transaction_id(handle.transaction_id).subtask
    files, suffix = [], ""
    for file in handle.data["files"]:
        suffix = suffix_of(file["staged"])
        path = url.rstrip("/") + layout.staged(file["staged"], subtask)[len(layout.root) :]
        partition = file.get("partition")
        values = partition if partition is not None else partition_of(file.get("folder", ""))
        files.append(StagedFile(path, file["rows"], file.get("bytes"), values))
    return staged_files_of(uid, checkpoint_id, suffix, files)


def quarantine_files(
    filesystem: AbstractFileSystem,
    layout: FileLayout,
    ctx: SinkContext,
    committables: Sequence[Committable],
    into: Quarantine,
) -> None:
    """Move the files of transactions, including their partition folders. See `SupportsQuarantine`."""
    for handle in committables:
        check_writer(ctx, handle)
        made = parse_transaction_id(handle.transaction_id)
        held = staged_files(layout.root, layout, ctx.uid, into.checkpoint_of(made), handle)
        moved = []
        for n, (entry, file) in enumerate(zip(handle.data["files"], held.files, strict=True)):
            name = f"{entry.get('folder', '')}{n}{suffix_of(entry['staged'])}"
            path = into.take_file(filesystem, layout.staged(entry["staged"], made.subtask), made, name)
            if path is not None:
                moved.append(replace(file, path=path))
        if moved:
            into.note(made, replace(held, files=tuple(moved)))


def suffix_of(staged: str) -> str:
    """Return the suffix of the published file, from its first dot on; empty if no sink staged the file."""
    name = parse_staged_name(staged)
    return name.suffix if name is not None else ""


def partition_of(folder: str) -> Mapping[str, str | None]:
    """Return the partition values in a folder's name, such as `day=2026-11-21/shop=7/`."""
    pairs = (part.partition("=") for part in folder.split("/") if part)
    return {unquote(name): None if value == NULL_FOLDER else unquote(value) for name, _, value in pairs}
