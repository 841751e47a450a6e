"""S5.5, S6.4, S7.5: whether a snapshot fits a pipeline, from their documents alone."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

from tidegate.jobs.restore.compatibility import RestoreTarget, RestoreVerdict, SnapshotFacts, check_compatibility

KEYED = [["__key_group", "uint16", True], ["key:k", "int32", True], ["count:n", "int64", True]]


def state(columns: Any = KEYED, form: str = "", **more: Any) -> dict[str, Any]:
    return {
        "name": "windows",
        "kind": "keyed",
        "columns": columns,
        "form": form,
        "renamed": {},
        "fills": True,
        **more,
    }


def operator(uid: str, inputs: tuple[str, ...] = (), states: Any = (), exchange: str = "hash") -> dict[str, Any]:
    exchanges = [exchange] * len(inputs)
    told = {"uid": uid, "kind": "window", "stateful": True, "schema": "", "inputs": list(inputs)}
    return {**told, "exchanges": exchanges, "states": None if states is None else list(states)}


def graph(*operators: dict[str, Any]) -> dict[str, Any]:
    return {"version": 2, "operators": list(operators)}


OLD = graph(operator("in"), operator("daily", ("in",), [state()]), operator("out", ("daily",)))


def body(graph: Any = OLD, **more: Any) -> dict[str, Any]:
    """Of a `_metadata` document."""
    handle = {"path": "f", "size_bytes": 1, "sha256": "x", "kinds": ["keyed"]}
    subtasks = [{"index": i, "finished": False, "handle": handle} for i in range(2)]
    operators = [{"uid": o["uid"], "status": "running", "subtasks": subtasks} for o in graph["operators"]]
    return {"parallelism": 2, "max_parallelism": 128, "operators": operators, "graph": graph, **more}


def judged(new: Any, was: Any = None, **options: Any) -> RestoreVerdict:
    target = RestoreTarget(**{"graph": new, "parallelism": 2, "max_parallelism": 128, **options})
    return check_compatibility(SnapshotFacts.from_body(was or body()), target)


def only(verdict: RestoreVerdict) -> tuple[str, str, str | None, str]:
    (finding,) = verdict.findings
    return finding.code, finding.verdict, finding.uid, f"{finding.what}: {finding.cause}. {finding.remedy}"


def test_the_same_pipeline_fits_and_nothing_is_found() -> None:
    assert judged(OLD) == RestoreVerdict(()) and judged(OLD).fits


def test_another_max_parallelism_is_refused() -> None:
    code, verdict, _, text = only(judged(OLD, max_parallelism=64))
    assert (code, verdict) == ("max_parallelism", "refused") and "Set max_parallelism=128" in text


def test_another_parallelism_is_told_and_refused_only_where_state_does_not_tell_its_kind() -> None:
    assert only(judged(OLD, parallelism=5))[:2] == ("parallelism", "changes")
    silent = body()
    silent["operators"][1]["subtasks"] = [{"index": 0, "finished": False, "handle": {"path": "f"}}]
    assert only(judged(OLD, silent, parallelism=5))[:3] == ("rescale", "refused", "daily")


def test_state_without_an_operator_is_refused_or_dropped() -> None:
    new = graph(operator("in"), operator("out", ("in",)))
    assert only(judged(new))[:3] == ("lost_operator", "refused", "daily")
    verdict = judged(new, allow_non_restored_state=True)
    assert verdict.fits and only(verdict)[3].startswith("the pipeline has no operator for the state of 'daily': it is")


def test_a_new_operator_with_state_is_told() -> None:
    new = graph(*OLD["operators"], operator("more", ("daily",), [state()]))
    assert only(judged(new))[:3] == ("new_operator", "changes", "more")


@pytest.mark.parametrize(
    ("new", "verdict", "told"),
    [
        (state([*KEYED, ["sum:v", "double", True]]), "changes", "'sum:v' is new, and null in restored rows"),
        (state([*KEYED, ["sum:v", "double", True]], fills=False), "refused", "'sum:v' is new"),
        (state([*KEYED[:1], ["key:k", "int64", True], *KEYED[2:]]), "changes", "'key:k' was int32, now int64"),
        (state([*KEYED[:1], ["key:k", "string", True], *KEYED[2:]]), "refused", "'key:k' was int32, now string"),
        (state(KEYED[:2]), "refused", "'count:n' is no longer declared"),
        (state(kind="list"), "refused", "the state's kind was keyed, now list"),
        (state(form="map"), "refused", "the state was value, now map"),
    ],
)
def test_a_changed_state_is_told_with_its_columns(new: Any, verdict: str, told: str) -> None:
    old = graph(operator("in"), operator("daily", ("in",), [state(form="value")]), operator("out", ("daily",)))
    changed = graph(operator("in"), operator("daily", ("in",), [new]), operator("out", ("daily",)))
    found = only(judged(changed, body(old)))
    assert found[:3] == ("state", verdict, "daily") and told in found[3]


def native(graph: Any = OLD) -> dict[str, Any]:
    """A checkpoint in which the state of "daily" is in files of RocksDB."""
    found = body(graph)
    daily = found["operators"][1]
    daily["subtasks"] = [{**s, "handle": {**s["handle"], "formats": ["rocksdb"]}} for s in daily["subtasks"]]
    return found


def test_files_of_a_back_end_need_that_back_end() -> None:
    """S5.2: said before anything is started."""
    assert judged(OLD, native()).fits and judged(OLD, native(), state_backend="rocksdb").fits
    found = only(judged(OLD, native(), state_backend="heap"))
    assert found[:3] == ("format", "refused", "daily")
    assert "files of rocksdb" in found[3] and "Restore with state_backend='rocksdb'" in found[3]
    assert judged(OLD, native(), state_backend="heap", commit_only=True).fits
    ended = native()
    ended["operators"][1]["status"] = "finished"
    assert "format" not in {finding.code for finding in judged(OLD, ended, state_backend="heap").findings}


def test_columns_change_in_files_too_and_states_are_dropped_in_rows_alone() -> None:
    """S5.5: the remedy is a savepoint."""
    grown = graph(
        operator("in"), operator("daily", ("in",), [state([*KEYED, ["sum:v", "double", True]])]), OLD["operators"][2]
    )
    gone = graph(operator("in"), operator("daily", ("in",)), OLD["operators"][2])
    for new, code in ((grown, "state"), (gone, "lost_state")):
        assert only(judged(new, allow_non_restored_state=True))[:2] == (code, "changes")
    assert only(judged(grown, native(), state_backend="rocksdb"))[:2] == ("state", "changes")
    found = only(judged(gone, native(), allow_non_restored_state=True))
    assert found[:3] == ("lost_state", "refused", "daily") and "Take a savepoint" in found[3]


def test_a_state_that_is_not_declared_any_more_is_refused() -> None:
    new = graph(operator("in"), operator("daily", ("in",)), operator("out", ("daily",)))
    assert only(judged(new))[:3] == ("lost_state", "refused", "daily")
    assert only(judged(new, allow_non_restored_state=True))[:3] == ("lost_state", "changes", "daily")
    held = graph(operator("in"), operator("daily", ("in",), [state(kind="list")]), operator("out", ("daily",)))
    verdict = judged(new, body(held), allow_non_restored_state=True)
    assert only(verdict)[1] == "refused", "what is not keyed may hold what is still to be committed"


def test_what_does_not_tell_its_states_is_looked_at_when_it_is_restored() -> None:
    old = graph(operator("in"), operator("daily", ("in",), None), operator("out", ("daily",)))
    del old["operators"][0]["states"]
    verdict = judged(OLD, body(old))
    assert verdict.fits and [(f.verdict, f.uid) for f in verdict.findings] == [("unknown", "in"), ("unknown", "daily")]


def test_a_drain_needs_its_word() -> None:
    drained = body(drained_operators=["daily"])
    found = only(judged(OLD, drained))
    assert found[:2] == ("drained", "refused") and "daily (window)" in found[3]
    assert judged(OLD, drained, allow_drained=True).fits


def test_a_running_operator_in_front_of_a_finished_one_is_refused() -> None:
    ended = body()
    for o in ended["operators"]:
        o["status"] = "finished"
    new = graph(
        *OLD["operators"][:1], operator("late"), operator("daily", ("in", "late"), [state()]), OLD["operators"][2]
    )
    verdict = judged(new, ended)
    assert [f.code for f in verdict.refused] == ["finished"] and "'late'" in verdict.refused[0].what


def test_a_verdict_has_one_json_form_with_what_is_refused_first() -> None:
    document = judged(graph(operator("in"), operator("new", ("in",))), max_parallelism=4).to_json()
    assert json.loads(json.dumps(document)) == document
    assert document["fits"] is False
    assert [f["verdict"] for f in document["findings"]] == ["refused", "refused", "changes"]
    assert set(document["findings"][0]) == {"code", "verdict", "uid", "state", "what", "cause", "remedy"}


def test_judging_needs_neither_arrow_nor_numpy() -> None:
    """An Airflow worker has neither."""
    module = "tidegate.jobs.restore.compatibility"
    code = f"import sys, {module}; print({{'pyarrow', 'numpy', 'pyspark'}} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


@pytest.mark.parametrize(("is_fork", "verdict"), [(None, "unknown"), (False, "refused"), (True, None)])
def test_another_sink_class_is_refused_unless_the_restore_is_a_fork(is_fork: bool | None, verdict: str | None) -> None:
    """S5.5, S7.4: a preflight that does not know says so. Documents of earlier versions do not name classes."""

    def of(sink: list[str] | None) -> dict[str, Any]:
        out = {**operator("out", ("in",)), "kind": "sink", "connector": sink}
        return graph({**operator("in"), "kind": "source", "connector": ["Files"]}, out)

    found = judged(of(["Csv", "FileSink"]), body(of(["Parquet", "FileSink"])), is_fork=is_fork).findings
    assert [(f.code, f.verdict, f.uid) for f in found] == ([("connector", verdict, "out")] if verdict else [])
    for same in (["Mine", "Parquet"], ["Renamed", "Parquet"], None):
        assert not judged(of(same), body(of(["Parquet", "FileSink"])), is_fork=False).findings
