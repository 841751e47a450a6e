"""Arguments of a job, checked against the signature of the pipeline's function."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import pytest

from tidegate.api.loader.function_arguments import call_function
from tidegate.errors import PipelineError

if TYPE_CHECKING:
    from decimal import Decimal


class Mode(Enum):
    FAST = "fast"
    SAFE = "safe"


@dataclass(frozen=True)
class Arguments:
    flights: str
    rows: int = 10
    tags: list[str] = field(default_factory=list)


def by_name(flights: str, rows: int = 10, *, delay: timedelta = timedelta(0)) -> tuple[Any, ...]:
    return flights, rows, delay


def by_dataclass(arguments: Arguments) -> Arguments:
    return arguments


def refusal(function: Callable[..., object], arguments: Mapping[str, Any]) -> PipelineError:
    with pytest.raises(PipelineError) as caught:
        call_function(function, arguments, "pipeline flows:build")
    assert caught.value.remedy
    assert caught.value.where.startswith("pipeline flows:build")
    return caught.value


def test_a_function_of_one_mapping_gets_it_as_it_is() -> None:
    def plain(args):  # type: ignore[no-untyped-def]
        return args

    def annotated(args: Mapping[str, Any], more: int = 0) -> Mapping[str, Any]:
        return args

    def late(args: Decimal) -> Any:
        """An annotation that only type checkers can look up says nothing."""
        return args

    for function in (plain, annotated, late, dict):
        assert call_function(function, {"rows": "5"}, "") == {"rows": "5"}


def test_an_annotation_that_cannot_be_looked_up_hides_no_other_one() -> None:
    """Names of types are often imported for type checkers alone, as that of the result."""

    def of_one(day: date) -> Decimal:
        return day  # type: ignore[return-value]

    def of_two(amount: Decimal, rows: int) -> tuple[Any, int]:
        return amount, rows

    assert call_function(of_one, {"day": "2026-01-01"}, "") == date(2026, 1, 1)
    assert call_function(of_two, {"amount": "1.5", "rows": "3"}, "") == ("1.5", 3)
    assert "is not of type int" in refusal(of_two, {"amount": 1, "rows": "many"}).what


def test_texts_of_the_command_line_become_what_the_signature_says() -> None:
    given = {"flights": "s3://a", "rows": "12", "delay": "5 min"}
    assert call_function(by_name, given, "") == ("s3://a", 12, timedelta(minutes=5))
    assert call_function(by_name, {"flights": "x"}, "") == ("x", 10, timedelta(0))
    assert call_function(by_dataclass, {"flights": "x", "rows": 3, "tags": ["a"]}, "") == Arguments("x", 3, ["a"])


@pytest.mark.parametrize("function", [by_name, by_dataclass])
def test_a_wrong_name_names_the_nearest_right_one_and_all_types(function: Callable[..., object]) -> None:
    error = refusal(function, {"flights": "x", "row": 3})
    assert error.what == "there is no argument 'row', did you mean 'rows'?"
    assert "flights: str, rows: int" in error.cause


@pytest.mark.parametrize("function", [by_name, by_dataclass])
def test_a_missing_argument_is_named(function: Callable[..., object]) -> None:
    error = refusal(function, {"rows": 3})
    assert error.what == "the argument 'flights' is missing"
    assert "--arg flights=" in error.remedy


@pytest.mark.parametrize("function", [by_name, by_dataclass])
def test_a_value_of_another_type_is_refused_with_the_argument(function: Callable[..., object]) -> None:
    for value in ("many", 1.5, True, None, [1]):
        error = refusal(function, {"flights": "x", "rows": value})
        assert error.what == f"the value {value!r} is not of type int"
        assert error.where == "pipeline flows:build, argument 'rows'"


@pytest.mark.parametrize(
    ("type_", "given", "wanted"),
    [
        (bool, "yes", True),
        (bool, "False", False),
        (float, "1.5", 1.5),
        (float, 2, 2.0),
        (int | None, None, None),
        (int | None, "3", 3),
        (int | str, "3", "3"),
        (datetime, "2026-01-01 10:00", datetime(2026, 1, 1, 10, tzinfo=UTC)),
        (date, "2026-01-01", date(2026, 1, 1)),
        (Path, "a/b", Path("a/b")),
        (Literal["a", "b"], "b", "b"),
        (Literal[1, 2], "2", 2),
        (Mode, "fast", Mode.FAST),
        (Mode, "SAFE", Mode.SAFE),
        (list[int], ["1", 2], [1, 2]),
        (tuple[int, str], ["1", "a"], (1, "a")),
        (tuple[int, ...], ["1", 2, 3], (1, 2, 3)),
        (Annotated[int, "rows"], "3", 3),
        (Sequence[str], ["a"], ("a",)),
        (dict[str, int], {"a": "1"}, {"a": 1}),
        (Any, {"a": 1}, {"a": 1}),
    ],
    ids=str,
)
def test_every_type_takes_what_json_and_the_command_line_can_say(type_: Any, given: Any, wanted: Any) -> None:
    @dataclass
    class One:
        a: Any

    One.__annotations__["a"] = type_
    made = call_function(by_annotation(One), {"a": given}, "")
    assert made.a == wanted and type(made.a) is type(wanted)  # type: ignore[attr-defined]


def by_annotation(type_: type) -> Callable[..., object]:
    def build(arguments):  # type: ignore[no-untyped-def]
        return arguments

    build.__annotations__ = {"arguments": type_}
    return build


@pytest.mark.parametrize(
    ("type_", "given", "cause"),
    [
        (bool, "maybe", "true or false is needed"),
        (bool, 1, "true or false is needed"),
        (float, "fast", "could not convert"),
        (timedelta, 5, "duration"),
        (Literal["a", "b"], "c", "the value must be one of a, b"),
        (Mode, "slow", "the value must be one of fast, safe"),
        (list[int], "1", "a list is needed"),
        (list[int], ["a"], "invalid literal"),
        (dict[str, int], [1], "a mapping of names to values is needed"),
        (int | None, "x", "invalid literal"),
        (str, 5, "the value is of type int"),
    ],
    ids=str,
)
def test_what_does_not_fit_a_type_is_refused_with_the_reason(type_: Any, given: Any, cause: str) -> None:
    @dataclass
    class One:
        a: Any

    One.__annotations__["a"] = type_
    assert cause in str(refusal(by_annotation(One), {"a": given}))


def test_a_function_may_take_any_further_names() -> None:
    def build(flights: str, **more: Any) -> tuple[Any, ...]:
        return flights, more

    assert call_function(lambda flights, rows: (flights, rows), {"flights": 1, "rows": 2}, "") == (1, 2)

    def both(flights: str, rows: int, **more: Any) -> tuple[Any, ...]:
        return flights, rows, more

    assert call_function(both, {"flights": "x", "rows": "1", "z": "2"}, "") == ("x", 1, {"z": "2"})
    assert call_function(build, {"flights": "x", "z": "2"}, "") == ("x", {"z": "2"})
