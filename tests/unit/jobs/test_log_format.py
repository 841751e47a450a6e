"""Lines of the log: text or JSON, with context, and nothing besides."""

from __future__ import annotations

import json
import logging
import subprocess
import sys

import pytest

from tidegate.log_format import JsonFormatter, TextFormatter, context

PROCESS = {"job": "orders", "generation": 3}


def record(message: str, *values: object, level: int = logging.WARNING, **extra: object) -> logging.LogRecord:
    """As a logger of the coordinator makes it, on 2026-11-21 at 09:25."""
    made = logging.Logger("tidegate.coordinator").makeRecord(
        "tidegate.coordinator", level, "file.py", 1, message, values, None, extra=extra
    )
    made.created = 1_795_253_100.5
    return made


def test_context_follows_the_message_in_a_fixed_order() -> None:
    place = context(subtask=2, checkpoint=42, operator="daily totals", job="another")
    assert TextFormatter(PROCESS).format(record("%s is late", "it", **place)) == (
        "2026-11-21T09:25:00.500Z WARNING tidegate.coordinator: it is late "
        'job=another generation=3 checkpoint=42 operator="daily totals" subtask=2'
    )


def test_further_lines_of_a_message_follow_the_context() -> None:
    line = TextFormatter({"slot": 0}).format(record("plan:\n a\n b", level=logging.INFO))
    assert line == "2026-11-21T09:25:00.500Z INFO tidegate.coordinator: plan: slot=0\n a\n b"


@pytest.mark.parametrize("value", ["", "a b", "a=b", 'a"b', "a\njob=other", "\x1b[31m"])
def test_a_value_that_is_no_single_word_is_quoted(value: str) -> None:
    line = TextFormatter({}).format(record("said", **context(command=value)))
    assert line.endswith(f"said command={json.dumps(value)}")


def test_a_json_line_is_one_object_with_the_same_facts() -> None:
    try:
        raise KeyError("missing")
    except KeyError:
        made = record("two\nlines", **context(checkpoint=42))
        made.exc_info = sys.exc_info()
    line = JsonFormatter(PROCESS).format(made)
    found = json.loads(line)
    assert "\n" not in line and "KeyError: 'missing'" in found.pop("traceback")
    assert list(found.items()) == [
        ("time", "2026-11-21T09:25:00.500Z"),
        ("level", "WARNING"),
        ("logger", "tidegate.coordinator"),
        ("message", "two\nlines"),
        ("job", "orders"),
        ("generation", 3),
        ("checkpoint", 42),
    ]


@pytest.mark.parametrize("formatter", [TextFormatter(PROCESS), JsonFormatter(PROCESS)], ids=["text", "json"])
def test_attributes_that_others_put_on_a_record_are_not_written(formatter: logging.Formatter) -> None:
    """A library may attach anything, options with a password among them."""
    assert "hunter2" not in formatter.format(record("connected", password="hunter2"))


PROGRAM = """
import logging, sys, tidegate.log_format as lf
{first}
logging.getLogger("tidegate.spark").info("of tidegate")
logging.getLogger("a_pipeline").info("chatter")
logging.getLogger("a_pipeline").warning("of the user")
"""


def lines_of(first: str) -> list[str]:
    """Standard error of a process that sets logging up with `first`."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(first=first)], capture_output=True, text=True, check=True
    )
    assert done.stdout == ""
    return done.stderr.splitlines()


def test_a_process_of_tidegate_logs_its_own_records_and_warnings_of_the_user_in_one_format() -> None:
    lines = lines_of('lf.set_up("text"); lf.set_up("json", job="orders", generation=2, slot=1)')
    found = [json.loads(line) for line in lines]
    assert [(line["logger"], line["message"]) for line in found] == [
        ("tidegate.spark", "of tidegate"),
        ("a_pipeline", "of the user"),
    ]
    assert all((line["job"], line["generation"], line["slot"]) == ("orders", 2, 1) for line in found)


def test_a_process_of_the_user_keeps_the_logging_that_it_has_set_up() -> None:
    assert lines_of('logging.basicConfig(format="mine: %(message)s"); lf.set_up_if_nobody_has("text")') == [
        "mine: of the user"
    ]
    own = lines_of('lf.set_up_if_nobody_has("text")')
    assert [line.split(" ", 1)[1] for line in own] == [
        "INFO tidegate.spark: of tidegate",
        "WARNING a_pipeline: of the user",
    ]
