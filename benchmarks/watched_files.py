"""A watched folder with many files: memory of the driver, time of a listing, size of the state; each is read once.

`python benchmarks/watched_files.py --files 1000000` writes the files first, 1,000 in a folder. It runs in one process,
without Spark: the enumerator as the driver has it, and one reader as a slot has it.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa

from tidegate.connectors.files.source.files import Files
from tidegate.connectors.files.source.watched_files import Watch
from tidegate.connectors.interface import SourceContext, Split

SCHEMA = pa.schema([("n", pa.int64())])
IN_A_FOLDER = 1_000


def write_files(folder: Path, first: int, count: int) -> None:
    """Write files with one row each: the number of the file."""
    for n in range(first, first + count):
        place = folder / f"{n // IN_A_FOLDER:06d}"
        place.mkdir(exist_ok=True)
        (place / f"{n:09d}.jsonl").write_text(f'{{"n": {n}}}\n')


def resident_mib() -> float:
    """Return the memory of this process."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize() / 2**20


def searched(source: Files, state: object) -> Iterator[tuple[list[Split], object, float]]:
    """Yield (splits, state, CPU seconds) of each search, until nothing more is known."""
    enumerator = source.create_enumerator(state)
    more = True
    while more:
        began_s = time.process_time()
        found = enumerator.discover()
        more = found.more
        yield list(found.splits), found.state, time.process_time() - began_s


def main() -> None:
    """Measure, and print one line for each figure."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--files", type=int, default=1_000_000)
    options.add_argument("--folder", type=Path, help="where to write the files; default: a temporary folder")
    chosen = options.parse_args()
    with tempfile.TemporaryDirectory(dir=chosen.folder) as made:
        folder = Path(made)
        write_files(folder, 0, chosen.files)
        source = Files(folder, schema=SCHEMA, watch=Watch("1 s", complete="listed"))
        before_mib = resident_mib()
        reader = source.create_reader(SourceContext("files", 0, 1))
        seen = bytearray(chosen.files + IN_A_FOLDER)
        state: object = None
        search_s = read_s = most_mib = 0.0
        for splits, after, took_s in searched(source, None):
            state, search_s = after, search_s + took_s
            began_s = time.process_time()
            reader.add_splits(splits)
            while (polled := reader.poll(0)).state == "more":
                for n in polled.batch.column("n").to_pylist() if polled.batch is not None else ():
                    seen[n] += 1
            read_s += time.process_time() - began_s
            most_mib = max(most_mib, resident_mib())
        assert seen == bytearray(b"\1" * chosen.files + b"\0" * IN_A_FOLDER), "a file was not read, or read twice"
        size = len(json.dumps(state))
        write_files(folder, chosen.files, IN_A_FOLDER)
        [(late, _, listing_s), *rest] = searched(source, json.loads(json.dumps(state)))
        assert len(late) + sum(len(splits) for splits, _, _ in rest) == IN_A_FOLDER
        snapshot = len(json.dumps([vars(split) for split in reader.snapshot()]))
        reader.close()
        print(f"{chosen.files:,} files, each read once; cores: {os.cpu_count()}")
        print(f"searches: {search_s:.1f} CPU s; reading: {read_s:.1f} CPU s")
        print(f"memory: {before_mib:.0f} MiB before, at most {most_mib:.0f} MiB")
        print(f"state of the enumerator: {size / 2**20:.1f} MiB, of the reader: {snapshot} bytes")
        print(f"restored, one listing with {IN_A_FOLDER:,} new files: {listing_s:.1f} CPU s")


if __name__ == "__main__":
    main()
