"""Delta tables of tests: written by delta-rs, or entry by entry, as other writers would."""

from __future__ import annotations

import json
import os
import time
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable as Written
from deltalake import write_deltalake

from tidegate.connectors.interface import Source, SourceContext, Split
from tidegate.testing.source_conformance import splits_of

GOLDEN = Path(__file__).parents[2] / "unit" / "connectors" / "golden" / "delta"
SCHEMA = pa.schema([pa.field("n", pa.int64()), pa.field("name", pa.string())])


def golden(name: str, into: Path) -> Path:
    """Unpack a table that another writer wrote. Return its folder."""
    with zipfile.ZipFile(GOLDEN / f"{name}.zip") as packed:
        packed.extractall(into)
    return into / name


def rows(first: int, number: int) -> pa.Table:
    """Rows first, first + 1, ..."""
    numbers = range(first, first + number)
    return pa.table([pa.array(numbers, pa.int64()), pa.array([f"row {n}" for n in numbers])], schema=SCHEMA)


class Growing:
    """A table that gets one data file with each append."""

    def __init__(self, folder: Path, **configuration: str) -> None:
        self.folder = folder
        Written.create(str(folder), schema=SCHEMA, configuration=configuration)
        self.next = 0

    @property
    def written(self) -> Written:
        return Written(str(self.folder))

    def append(self, number: int = 100) -> int:
        """Append one data file. Return the version."""
        write_deltalake(str(self.folder), rows(self.next, number), mode="append")
        self.next += number
        return self.written.version()

    def add_entry(self, *actions: Mapping[str, Any]) -> int:
        """Append a log entry, as another writer would. Return the version."""
        version = self.written.version() + 1
        text = "\n".join(json.dumps(action) for action in actions)
        (self.log / f"{version:020}.json").write_text(text)
        return version

    @property
    def log(self) -> Path:
        return self.folder / "_delta_log"

    def metadata(self) -> dict[str, Any]:
        """Return the fields of the newest metaData action."""
        every = (action for entry in sorted(self.log.glob("*.json")) for action in actions_of(entry))
        return dict([action["metaData"] for action in every if "metaData" in action][-1])

    def age_log(self, versions: Sequence[int], days: float) -> None:
        """Make log entries look old."""
        moment = time.time() - days * 86_400
        for version in versions:
            os.utime(self.log / f"{version:020}.json", (moment, moment))


def actions_of(entry: Path) -> list[dict[str, Any]]:
    """Return the actions of a log entry."""
    return [json.loads(line) for line in entry.read_text().splitlines()]


def read(source: Source, splits: Sequence[Split] | None = None) -> list[dict[str, Any]]:
    """Return all rows of splits, or of a source as it is now."""
    reader = source.create_reader(SourceContext("source", 0, 1))
    reader.add_splits(splits_of(source) if splits is None else splits)
    reader.no_more_splits()
    found: list[dict[str, Any]] = []
    while (polled := reader.poll(0)).batch is not None:
        found += polled.batch.to_pylist()
    reader.close()
    return found


def found_by(source: Source, state: Any = None) -> tuple[list[Split], Any]:
    """Search until nothing more is known. Return the splits, and the state after the last search."""
    enumerator = source.create_enumerator(state)
    search = enumerator.discover()
    splits = list(search.splits)
    while search.more:
        search = enumerator.discover()
        splits += search.splits
    enumerator.close()
    return splits, json.loads(json.dumps(search.state))
