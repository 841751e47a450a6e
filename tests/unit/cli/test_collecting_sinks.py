"""`tidegate gc --sinks` (S2.3): of a real job's sinks, with the code that its submissions pinned."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from cli_caller import Caller
from test_committing_late import Pinned

from tidegate.coordinator import events as ev
from tidegate.jobs.artifacts.pinned_graph import PinnedGraph, write_pinned_graph

OLD_S = 946_684_800
"""Seconds since the epoch: in the year 2000."""


class Committed(Pinned):
    """A job with some commit markers, long ago, that was cancelled."""

    def __init__(self, tidegate: Caller, folder: Path) -> None:
        super().__init__(tidegate, folder, "automatic")
        self.job.generation_log.append("status", {"status": "RUNNING"})
        for n in (1, 2, 3):
            self.run.pump(10)
            self.run.ask(ev.SnapshotRequest("checkpoint", request_id=f"c{n}"))
            self.run.pump(10)
        self.run.crash()
        self.job.generation_log.append("status", {"status": "CANCELED"})

    def grow_old(self) -> None:
        for path in self.out.rglob("*"):
            os.utime(path, (OLD_S, OLD_S))

    def markers(self) -> list[str]:
        return sorted(os.listdir(self.out / "_tidegate" / "commits"))


@pytest.fixture
def committed(tidegate: Caller, tmp_path: Path) -> Committed:
    tidegate.root = str(tmp_path / "root")
    return Committed(tidegate, tmp_path)


def test_markers_are_put_together_when_it_is_asked_and_they_are_old(tidegate: Caller, committed: Committed) -> None:
    """S2.3, S7.4."""
    before, shown = committed.markers(), committed.shown()
    assert len(before) == 6
    assert tidegate("gc", "flights", "--sinks", "--json").document["in_sinks"] == []
    committed.grow_old()
    assert tidegate("gc", "flights", "--json").document["in_sinks"] == [] and committed.markers() == before
    told = tidegate("gc", "flights", "--sinks", "--dry-run")
    assert told.code == 0 and "_tidegate/commits (6 files)" in told.out and committed.markers() == before, told.err
    done = tidegate("gc", "flights", "--sinks", "--json").document
    (one,) = done["in_sinks"]
    assert (one["why"], one["files"]) == ("markers", 6) and one["sink"].startswith("Parquet(")
    assert one["size_bytes"] and done["freed_bytes"] >= one["size_bytes"] and done["sinks_kept"] == []
    assert committed.markers() == [] and committed.shown() == shown
    assert tidegate("gc", "flights", "--sinks", "--json").document["in_sinks"] == []


def test_places_of_older_submissions_are_gone_through_or_told(
    tidegate: Caller, committed: Committed, tmp_path: Path
) -> None:
    """S2.3: the job writes elsewhere by now."""
    committed.grow_old()
    client = committed.client
    told = {"out": f"Parquet({str(committed.out)!r})"}
    write_pinned_graph(client.store, client.layout, PinnedGraph(1, 2, 128, {}, "now", told))
    committed.file.write_text(committed.file.read_text() + "\n# another version\n")
    arguments = {"out": str(tmp_path / "elsewhere")}
    spec = client.submit(
        pipeline=f"{committed.file}:build", arguments=arguments, options={"parallelism": 2}, fresh=True
    )
    client.log.begin_generation(spec=spec.number, launch=1).append("status", {"status": "RUNNING"})
    would = tidegate("gc", "flights", "--sinks", "--dry-run", "--json").document
    assert [(one["sink"], one["files"]) for one in would["in_sinks"]] == [(told["out"], 6)]
    client.store.delete(client.layout.artifact_code(client.spec(1).artifact))
    answer = tidegate("gc", "flights", "--sinks", "--json")
    assert answer.code == 0 and answer.document["in_sinks"] == [], answer.err
    (kept,) = answer.document["sinks_kept"]
    assert told["out"] in kept and "submission 1, whose pipeline cannot be built" in kept and kept in answer.err
    client.store.delete(client.layout.artifact_code(spec.artifact))
    refused = tidegate("gc", "flights", "--sinks")
    assert refused.code != 0 and "a file of it is missing" in refused.err
