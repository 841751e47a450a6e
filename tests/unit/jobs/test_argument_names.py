"""Wrong names of arguments are told before a job is submitted, without importing its pipeline (S9.3)."""

from __future__ import annotations

import importlib.util
import sys
import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tidegate.api.loader.function_arguments import call_function
from tidegate.errors import PipelineError
from tidegate.jobs.client.argument_names import check_argument_names
from tidegate.jobs.client.job_client import JobClient

DATACLASS = """
    from __future__ import annotations
    import dataclasses
    from dataclasses import dataclass, field
    from typing import Any, ClassVar, Mapping

    @dataclass(frozen=True)
    class Arguments:
        sales: str
        out: str
        tags: list = field(default_factory=list)
        late: int = 5
"""
SIGNATURES = {
    "typed": "def build(sales: str, out: str, late: int = 5): ...",
    "one typed": "def build(sales: str): ...",
    "keywords": "def build(*, sales, out, late=5): ...",
    "dataclass": "def build(arguments: Arguments): ...",
    "none": "def build(): ...",
    "open": "def build(sales: str, out: str, **more): ...",
    "first alone": "def build(sales: str, late: int = 5): ...",
    "mapping": "def build(args): ...",
    "annotated mapping": "def build(args: Mapping[str, Any]): ...",
    "dict": "def build(args: dict): ...",
    "mapping and an option": "def build(args, late=5): ...",
    "of any class": "def build(args: Elsewhere): ...",
}
GIVEN: list[Mapping[str, Any]] = [
    {},
    {"sales": "s"},
    {"sales": "s", "out": "o"},
    {"sales": "s", "out": "o", "late": 7},
    {"sales": "s", "out": "o", "lat": 7},
    {"out": "o"},
    {"late": 7},
]


def written(tmp_path: Path, signature: str) -> str:
    file = tmp_path / "pipe.py"
    file.write_text(f"{textwrap.dedent(DATACLASS)}\n\n{signature}\n")
    return f"{file}:build"


@pytest.mark.parametrize("signature", SIGNATURES.values(), ids=SIGNATURES)
@pytest.mark.parametrize("arguments", GIVEN, ids=lambda given: ",".join(given) or "none")
def test_what_is_refused_is_what_its_driver_would_refuse(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, signature: str, arguments: Mapping[str, Any]
) -> None:
    """In the same words; the oracle is the check that imports the code."""
    pipeline = written(tmp_path, signature)
    spec = importlib.util.spec_from_file_location("pipe_of_a_test", tmp_path / "pipe.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "pipe_of_a_test", module)
    spec.loader.exec_module(module)
    expected = refusal(lambda: call_function(module.build, arguments, "x"))
    assert refusal(lambda: check_argument_names(pipeline, None, arguments)) == expected


def refusal(check: Any) -> str:
    """What is wrong with the names; "" also when the pipeline fails by itself."""
    try:
        check()
    except PipelineError as error:
        return error.what
    return ""


@pytest.mark.parametrize(
    "signature",
    [
        "@made\ndef build(sales: str, out: str): ...",
        "def build(sales: str, out: str): ...\nbuild = wrap(build)",
        "def build(sales: str, /, out: str): ...",
        "if True:\n    def build(sales: str, out: str): ...",
        "from elsewhere import build",
        "class Own(Base):\n    a: int\n\ndef build(arguments: Own): ...",
        "@dataclass\nclass Own:\n    a: ClassVar[int]\n\ndef build(arguments: Own): ...",
        "@dataclass\nclass Own:\n    a: int = field(init=False)\n\ndef build(arguments: Own): ...",
        "@dataclass\nclass Own:\n    if True:\n        lat: int = 5\n\ndef build(arguments: Own): ...",
        "def build(sales: str, out: str): ...\nfrom elsewhere import *",
        "def build(sales: str, out: str:",
    ],
)
def test_what_cannot_be_told_from_the_source_is_left_to_the_driver(tmp_path: Path, signature: str) -> None:
    check_argument_names(written(tmp_path, signature), None, {"lat": 7})


def test_the_error_names_the_place_the_nearest_and_all(tmp_path: Path) -> None:
    pipeline = written(tmp_path, SIGNATURES["typed"])
    with pytest.raises(PipelineError) as refused:
        check_argument_names(pipeline, str(tmp_path), {"sales": "s", "out": "o", "latte": 3})
    said = str(refused.value)
    assert "there is no argument 'latte', did you mean 'late'?" in said and "sales, out, late" in said
    assert f"{tmp_path}/pipe.py:15" in said


def test_nothing_is_submitted_or_pinned_with_wrong_arguments(client: JobClient, tmp_path: Path) -> None:
    pipeline = written(tmp_path, SIGNATURES["dataclass"])
    with pytest.raises(PipelineError, match="'out' is missing"):
        client.submit(pipeline=pipeline, arguments={"sales": "s"})
    assert client.specs() == () and not client.store.walk(client.layout.artifacts)
    assert client.submit(pipeline=pipeline, arguments={"sales": "s", "out": "o"}).number == 1


def test_code_in_a_folder_is_read_too(tmp_path: Path) -> None:
    package = tmp_path / "flows"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "daily.py").write_text("def build(sales: str, out: str): ...\n")
    for pipeline, root in ((f"{package}/daily.py:build", None), ("flows.daily:build", str(tmp_path))):
        with pytest.raises(PipelineError, match="'sales' is missing"):
            check_argument_names(pipeline, root, {})


def test_a_default_that_a_function_of_the_file_gives_is_one(tmp_path: Path) -> None:
    own = (
        "def optional_field():\n    return field(default=1)\n\n@dataclass\nclass Own:\n    lat: int = optional_field()"
    )
    check_argument_names(written(tmp_path, f"{own}\n\ndef build(arguments: Own): ..."), None, {})


@pytest.mark.parametrize("beside", ["a module in the package has its name", "a module beside it has its name"])
def test_the_file_that_is_read_is_the_one_that_would_be_imported(tmp_path: Path, beside: str) -> None:
    package = tmp_path / "flows"
    package.mkdir()
    (package / "__init__.py").write_text("def build(sales: str): ...\n")
    other = package if beside.startswith("a module in") else tmp_path
    (other / "flows.py").write_text("def build(other: str): ...\n")
    check_argument_names(f"{package}/__init__.py:build", None, {"sales": "s"})
    check_argument_names(f"{package}/__init__.py:build", str(tmp_path), {"sales": "s"})
