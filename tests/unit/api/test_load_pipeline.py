"""Loading `module:function` from a folder, and what the user reads when their code fails."""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tidegate.api.loader.pipeline_loader import load_pipeline
from tidegate.errors import OptionError, PipelineError
from tidegate.jobs.artifacts.packed_pipeline import describe, pack_pipeline

GOOD = """
    import pyarrow as pa
    from tidegate import DataGen, Discard, Pipeline

    def build(args):
        p = Pipeline()
        stream = p.read(DataGen(dict, pa.schema([("a", pa.int64())])), uid=args["uid"])
        stream.write(Discard(), uid="out")
        return p
"""


@pytest.fixture(autouse=True)
def unchanged_interpreter() -> Iterator[None]:
    path, modules = list(sys.path), set(sys.modules)
    yield
    sys.path[:] = path
    for name in sys.modules.keys() - modules:
        if name.startswith("flows"):
            del sys.modules[name]


def write(folder: Path, code: str, name: str = "flows.py") -> str:
    file = folder / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(textwrap.dedent(code))
    return str(folder)


def refusal(folder: str, target: str = "flows:build", arguments: dict[str, Any] | None = None) -> PipelineError:
    with pytest.raises(PipelineError) as caught:
        load_pipeline(folder, target, arguments or {})
    assert caught.value.remedy
    return caught.value


def test_the_function_gets_the_arguments_and_its_graph_is_built(tmp_path: Path) -> None:
    graph = load_pipeline(write(tmp_path, GOOD), "flows:build", {"uid": "numbers"})
    assert [n.uid for n in graph.nodes] == ["numbers", "out"]


def test_locations_are_relative_to_the_folder(tmp_path: Path) -> None:
    graph = load_pipeline(write(tmp_path, GOOD), "flows:build", {"uid": "numbers"})
    assert graph.nodes[0].location == "flows.py:7"


def test_the_function_cannot_change_the_arguments_of_the_caller(tmp_path: Path) -> None:
    folder = write(tmp_path, GOOD.replace('args["uid"]', 'args.pop("uid")'))
    arguments = {"uid": "numbers"}
    load_pipeline(folder, "flows:build", arguments)
    assert arguments == {"uid": "numbers"}


def test_a_module_of_a_package_and_its_siblings_are_found(tmp_path: Path) -> None:
    write(tmp_path, GOOD, "flows_package/jobs/daily.py")
    write(tmp_path, "", "flows_package/__init__.py")
    folder = write(tmp_path, "from flows_package.jobs.daily import build", "flows.py")
    assert load_pipeline(folder, "flows:build", {"uid": "a"}).nodes[0].uid == "a"
    assert load_pipeline(folder, "flows_package.jobs.daily:build", {"uid": "b"}).nodes[0].uid == "b"


def test_two_versions_of_a_pipeline_load_in_one_process_with_their_own_siblings(tmp_path: Path) -> None:
    code = GOOD.replace("from tidegate import", "from flows_names import NAME\n    from tidegate import")
    for version in ("first", "second"):
        folder = write(tmp_path / version, code.replace('args["uid"]', "NAME"))
        write(tmp_path / version, f"NAME = {version!r}", "flows_names.py")
        assert load_pipeline(folder, "flows:build", {}).nodes[0].uid == version
    assert [entry for entry in sys.path if entry.startswith(str(tmp_path))] == [str(tmp_path / "second")]


def test_sinks_are_asked_only_where_wanted(tmp_path: Path) -> None:
    code = GOOD.replace(
        "def build", "class Sink(Discard):\n        def check(self, schema):\n            1 / 0\n\n    def build"
    )
    folder = write(tmp_path, code.replace("write(Discard()", "write(Sink()"))
    assert load_pipeline(folder, "flows:build", {"uid": "a"}, check_sinks=False).nodes[1].uid == "out"
    assert "ZeroDivisionError" in refusal(folder, arguments={"uid": "a"}).what


@pytest.mark.parametrize("target", ["flows", "flows:", ":build"])
def test_a_target_without_module_or_function_is_refused(target: str, tmp_path: Path) -> None:
    assert "module:function" in refusal(str(tmp_path), target).what


def test_a_missing_module_names_the_nearest_one(tmp_path: Path) -> None:
    error = refusal(write(tmp_path, GOOD), "flowz:build")
    assert error.what == "there is no module 'flowz', did you mean 'flows'?"


def test_a_missing_function_names_the_nearest_one(tmp_path: Path) -> None:
    error = refusal(write(tmp_path, GOOD), "flows:biuld")
    assert error.what == "there is no function 'biuld', did you mean 'build'?"
    assert error.where == "flows.py"


def test_what_is_no_function_is_refused(tmp_path: Path) -> None:
    assert "must be a function, but is a int" in refusal(write(tmp_path, "build = 3")).what


def test_a_function_without_parameters_takes_no_arguments(tmp_path: Path) -> None:
    code = write(tmp_path, GOOD.replace("build(args)", "build()").replace('args["uid"]', '"numbers"'))
    assert load_pipeline(code, "flows:build", {}).nodes[0].uid == "numbers"
    assert refusal(code, arguments={"uid": "a"}).cause == "the function's arguments are none"


def test_a_function_that_forgets_to_return_is_told_so(tmp_path: Path) -> None:
    error = refusal(write(tmp_path, GOOD.replace("return p", "pass")), arguments={"uid": "a"})
    assert error.what == "build returned nothing, not a Pipeline"
    assert "return p" in error.remedy


def test_an_error_in_the_users_code_names_its_last_line_there(tmp_path: Path) -> None:
    code = """
        import json

        def load(text):
            return json.loads(text)

        def build(args):
            return load("{")
    """
    error = refusal(write(tmp_path, code))
    assert error.what.startswith("the pipeline's code raised JSONDecodeError: ")
    assert error.where == "pipeline flows:build, flows.py:5 in load"
    assert error.cause == "`return json.loads(text)`"
    assert isinstance(error.__cause__, ValueError)


def test_an_argument_that_was_not_given_is_named_with_the_given_ones(tmp_path: Path) -> None:
    error = refusal(write(tmp_path, GOOD), arguments={"uidd": "x", "rate": 3})
    assert "KeyError: 'uid'" in error.what
    assert "the arguments are: uidd, rate" in error.remedy
    assert "Did you mean 'uidd'?" in error.remedy


def test_a_syntax_error_names_file_and_line(tmp_path: Path) -> None:
    error = refusal(write(tmp_path, "def build(args)\n    return 1\n"))
    assert error.where == "flows.py:1"
    assert error.cause == "def build(args)"


def test_a_package_that_is_not_installed_is_named(tmp_path: Path) -> None:
    error = refusal(write(tmp_path, "import flows_not_installed"))
    assert "No module named 'flows_not_installed'" in error.what
    assert "--code-root FOLDER" in error.remedy, "the folder of a user's own module is not pinned by itself"
    assert error.where == "pipeline module 'flows', flows.py:1 in <module>"
    assert "install" in error.remedy


def test_errors_of_the_api_pass_as_they_are(tmp_path: Path) -> None:
    error = refusal(write(tmp_path, GOOD.replace(', uid="out"', "")), arguments={"uid": "a"})
    assert error.what == "the sink has no uid"
    assert error.where == "sink at flows.py:8"
    options = """
        from tidegate import JobOptions

        def build(args):
            JobOptions(parallelism=0)
    """
    with pytest.raises(OptionError):
        load_pipeline(write(tmp_path, options), "flows:build", {})


@pytest.mark.parametrize("name", ["json", "tidegate", "hypothesis"])
def test_a_file_with_the_name_of_a_known_module_is_refused(name: str, tmp_path: Path) -> None:
    import hypothesis  # noqa: F401

    error = refusal(write(tmp_path, GOOD, f"{name}.py"), f"{name}:build")
    assert error.what == f"a pipeline's file cannot be named {name!r}"


def test_packages_of_a_packed_pipeline_beside_it_are_found_last(tmp_path: Path) -> None:
    """As Spark's --py-files puts it on sys.path: its code is there by itself. A zip that is none is left alone."""
    files = (
        ("flows_beside.py", b"from flows_words import WORD"),
        ("site-packages/flows_words.py", b"WORD = 'numbers'"),
    )
    (tmp_path / "beside.zip").write_bytes(pack_pipeline(describe("flows_beside:build", [], files), files))
    other = tmp_path / "other.zip"
    other.write_bytes(b"no zip")
    sys.path[:0] = [str(tmp_path / "beside.zip"), str(other), str(tmp_path / "gone.zip")]
    code = (
        textwrap.dedent(GOOD)
        .replace("def build", "from flows_beside import WORD\ndef build")
        .replace('args["uid"]', "WORD")
    )
    for _ in range(2):
        assert load_pipeline(write(tmp_path / "code", code), "flows:build", {}).nodes[0].uid == "numbers"
    assert [entry for entry in sys.path if entry.endswith("site-packages") and ".zip" in entry] == [sys.path[-1]]
