"""Proofs of what keeps no rows, or gives them elsewhere: columns, functions, unions, exchanges, outputs, requests."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from proof_cases import LEFT, Case, Drawing, Result

from tidegate import SideOutput
from tidegate.change_rows import INSERT, change_kind_field

IDS = "select id from l"
CHANGES = LEFT.append(change_kind_field("kind"))


def by_sign(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch | SideOutput]:
    """Rows from 0 on; negative ones to a side output, those without a number nowhere."""
    for batch in batches:
        yield batch.filter(pc.field("v") >= 0)
        yield SideOutput("negative", batch.filter(pc.field("v") < 0))


def as_changes(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Change rows that insert each row."""
    for batch in batches:
        kinds = pa.repeat(INSERT, batch.num_rows)
        yield pa.RecordBatch.from_arrays([*batch.columns, kinds], schema=CHANGES)


def doubled(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Twice the number."""
    return batch.set_column(2, "v", pc.multiply(batch["v"], 2))


async def doubled_later(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The same on an event loop."""
    return doubled(batch)


def by_id(batch: pa.RecordBatch, n: int) -> Any:
    """A partitioner."""
    return batch["id"].to_numpy() % 5 % n


def columns(d: Drawing) -> Mapping[str, Result]:
    """Columns and rows."""
    twice = d.left.with_columns(v=pc.field("v") * 2, low=pc.field("f") < 0)
    split = d.left.map_in_arrow(by_sign, LEFT, side_outputs={"negative": LEFT}, uid="split")
    both = split.union(split.side_output("negative"), d.ordered)
    changes = d.left.map_in_arrow(as_changes, CHANGES)
    return {
        "changes_as_rows": Result(changes.changes_as_rows().select("id", "kind"), "select id, 'insert' from l"),
        "select": Result(d.left.select("k", third=pc.field("id") * 3), "select k, id * 3 from l"),
        "with_columns": Result(twice.select("id", "v", "low"), "select id, v * 2, f < 0 from l"),
        "filter": Result(d.left.filter(pc.field("b")).select("id"), "select id from l where b"),
        "map_in_arrow": Result(split.select("id", "v"), "select id, v from l where v >= 0"),
        "side_output": Result(split.side_output("negative").select("id"), "select id from l where v < 0"),
        "union": Result(both.select("id"), "select id from l where v is not null union all select id from o"),
    }


def exchanges(d: Drawing) -> Mapping[str, Result]:
    """Every row once, wherever it goes: where it is has `test_exchange_jobs`."""
    streams = {
        "rebalance": d.left.rebalance(),
        "repartition": d.left.repartition("k", "b"),
        "partition_by": d.left.partition_by(by_id),
    }
    return {name: Result(stream.select("id"), IDS) for name, stream in streams.items()}


def copies(d: Drawing) -> Mapping[str, Result]:
    """A copy of each row for each subtask, of which there are two."""
    copied = d.left.broadcast_all().select("id")
    return {"broadcast_all": Result(copied, "select id, 2 from l", "select id, count(*) from out group by id")}


def copies_once(d: Drawing) -> Mapping[str, Result]:
    """No row is lost where subtasks come and go."""
    once = d.left.broadcast_all().deduplicate("id", uid="once")
    return {"broadcast_all": Result(once.select("id"), IDS)}


def requests(d: Drawing) -> Mapping[str, Result]:
    """Answers of functions that wait."""
    told = d.left.map_async(doubled, LEFT, capacity=3, batch_rows=4, uid="ordered")
    later = d.left.map_async(doubled_later, LEFT, ordered=False, uid="unordered")
    return {
        "ordered": Result(told.select("id", "v"), "select id, v * 2 from l"),
        "unordered": Result(later.select("id", "v"), "select id, v * 2 from l"),
    }


def sinks(d: Drawing) -> Mapping[str, Result]:
    """Rows go through a sink, and on."""
    through = d.left.select("id", "v").write_through(d.into("through"), uid="through")
    return {
        "through": Result(through.schema, "select id, v from l"),
        "behind": Result(through.filter(pc.field("v") > 0).select("id"), "select id from l where v > 0"),
    }


ROW_BY_ROW = {
    "columns and rows": Case(columns),
    "exchanges": Case(exchanges),
    "copies for every subtask": Case(copies, rescales=False),
    "copies, rescaled": Case(copies_once, depends_on_mode=True),
    "asynchronous functions": Case(requests),
    "sinks in the middle": Case(sinks),
}
