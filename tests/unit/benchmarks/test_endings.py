"""What the table of docs/endings.md rests on: the account of rows, and the table made from it."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import in_process_job
import pytest
import report
import scenarios
import workload
from workload import Emitted

DOCUMENT = Path(__file__).parents[3] / "docs" / "endings.md"
ALL = workload.numbers_of((1, 2, 3))


def result(*rows: int, key: str = "a", window: str = "0") -> Emitted:
    return Emitted(key, window, len(rows), sum(1 << row for row in rows))


def test_every_row_has_a_value_of_its_own_that_a_sum_can_be_taken_apart_into() -> None:
    values = [row["v"] for file in (1, 2, 3) for row in workload.file_rows(file) if row["k"] != workload.END_KEY]
    assert sorted(values) == [1 << i for i in range(len(ALL))]
    assert result(0, 5, 20).rows == {0, 5, 20}


def test_a_row_counted_twice_in_one_window_does_not_pass_for_another() -> None:
    with pytest.raises(ValueError, match="2 rows counted"):
        _ = Emitted("a", "0", 2, 2 + 2).rows


def test_rows_that_are_missing_or_emitted_twice_are_found() -> None:
    told = workload.account((1,), [result(0, 1, 2), result(2, 3, window="1"), result(4), result(7, key="b")])
    assert told.missing == {5, 6}
    assert told.rows_twice == {2}
    assert told.windows_twice == 1, "two results of key a and window 0"


def test_the_row_that_only_moves_time_on_is_not_counted() -> None:
    told = workload.account((1, 2, 3), [Emitted(workload.END_KEY, "9", 1, 0)])
    assert told.given == ALL and told.emitted == frozenset()


def test_files_appear_whole_and_in_order(tmp_path: Path) -> None:
    counts = [workload.give(tmp_path / "in", number) for number in (1, 2)]
    assert counts == [8, 6]
    assert [path.name for path in sorted((tmp_path / "in").iterdir())] == ["rows-1.jsonl", "rows-2.jsonl"]


@pytest.mark.parametrize("kind", ["event", "processing"])
def test_tidegate_loses_and_repeats_no_row_however_a_job_ends(kind: scenarios.Kind, tmp_path: Path) -> None:
    """S7.2, S7.5, S7.6: the lives of the table, without Spark; and what they give is what the document says."""
    scenarios.play(in_process_job.InProcess(), "", tmp_path, kinds=[kind])
    lives = json.loads((tmp_path / "lives.json").read_text(encoding="utf-8"))["lives"]
    lines = report.table(kind, {"tidegate": lives})
    text = DOCUMENT.read_text(encoding="utf-8")
    assert [line for line in lines if line not in text] == []
    assert {line.split("|")[8].strip() for line in lines[2:]} == {"0"}, "rows lost"
    assert [cells(lines, case)[1] for case in ("drain", "natural end")] == ["14", "14"]


def life(end: scenarios.End, at_end: list[Emitted], restored: list[Emitted] | None = None, **more: Any) -> Any:
    return scenarios.Life(
        "event",
        end,
        workload.account((1, 2), at_end),
        None if restored is None else workload.account((1, 2, 3), restored),
        **more,
    ).facts()


def cells(lines: list[str], case: str) -> list[str]:
    (row,) = (line for line in lines if line.startswith(f"| {case} |"))
    return [cell.strip() for cell in row.strip("|").split("|")][2:]


def test_the_table_tells_what_was_kept_lost_and_emitted_twice() -> None:
    first, rest = result(*range(8)), result(*range(8, 21), window="1")
    lines = report.table(
        "event",
        {
            "flink": [
                life("stop", [first], [first, rest], kept_windows=1),
                life(
                    "drain",
                    [first],
                    [first, result(*range(9, 21), window="1"), result(20, window="1")],
                    refused="no",
                    kept_windows=1,
                ),
                life("natural", [first]),
                life("cancel", [first], [first], ended_early=True),
            ]
        },
    )
    assert cells(lines, "stop") == ["14", "8", "6 (1)", "0", "0", "0", ""]
    assert cells(lines, "restore after stop") == ["21", "21", "-", "0", "0", "0", ""]
    assert cells(lines, "drain")[2:6] == ["5 (1)", "0", "0", "1"]
    twice = cells(lines, "restore after drain")
    assert twice[3:6] == ["1", "1", "1"] and "allow_drained" in twice[6]
    assert cells(lines, "natural end")[5:] == ["6", "no error; the log does not mention the lost rows"]
    assert cells(lines, "cancel")[5] == "6"


def test_the_figures_of_a_document_are_replaced_and_nothing_else() -> None:
    document = f"before\n{report.BEGIN}\nold\n{report.END}\nafter\n"
    once = report.put(document, ["new"])
    assert once == f"before\n{report.BEGIN}\n\nnew\n\n{report.END}\nafter\n"
    assert report.put(once, ["new"]) == once
    with pytest.raises(ValueError, match="each once"):
        report.put("no marks", ["new"])


def test_the_document_has_every_case_and_tidegate_loses_no_row_in_any() -> None:
    text = DOCUMENT.read_text(encoding="utf-8")
    figures = text[text.index(report.BEGIN) : text.index(report.END)]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in re.findall(r"^\|.*\|$", figures, re.M)]
    ours = [dict(zip(report.COLUMNS, row, strict=True)) for row in rows if row[1] == "tidegate"]
    assert [row["case"] for row in ours] == [case for case, _, _ in report.CASES] * 2
    assert {row["rows lost"] for row in ours} == {"0"}
    assert {row["rows emitted twice"] for row in ours} == {"0"}
    assert [row["rows emitted"] for row in ours if row["case"] in ("drain", "natural end")] == ["14"] * 4
