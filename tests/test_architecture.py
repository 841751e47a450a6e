"""The shape of the code, held by tests: import direction, sizes of folders, names, and what must not be in it."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[1]
sys.path.insert(0, str(REPOSITORY / "tools"))

import import_graph  # noqa: E402

PACKAGES = (REPOSITORY / "spark_runtime" / "tidegate", REPOSITORY / "provider" / "airflow_tidegate")
# Modules in one folder, `__init__` aside: above this, a stranger no longer finds the right one.
LARGEST_FOLDER = 20
# Lines of a function, its docstring aside: what one sees whole.
LONGEST_FUNCTION = 60
# Functions that ruff's rules on complexity let pass, with a reason each.
MOST_EXCEPTIONS = 10
EMPTY_NAMES = {"manager", "handler", "helper", "helpers", "utils", "util", "common", "core", "misc", "engine", "impl"}
CODE_RUNNING_FORMATS = {"pickle", "cPickle", "_pickle", "cloudpickle", "dill", "marshal", "shelve", "joblib"}
# All that the provider may import of the runtime: the job directory, and what it is made of.
PROVIDER_MAY_IMPORT = ("tidegate.jobs", "tidegate.errors", "tidegate.extras", "tidegate.units", "tidegate.clock")

# Who may ask the clock that people set: times for people, the expiry of commands, the processing time of operators.
# class_archive.py compares the wall clock with the time of a file.
WALL_CLOCK_READERS = {
    "clock.py",
    "connectors/files/source/watched_files.py",  # compares it with the times of files
    "spark/class_archive.py",
    "spark/driver.py",
    "subtask/deployment.py",
}


def modules() -> list[Path]:
    """Every module of both packages."""
    return sorted(module for package in PACKAGES for module in package.rglob("*.py"))


def short(path: Path) -> str:
    """`path` as read in a message."""
    return path.relative_to(REPOSITORY).as_posix()


def imports(path: Path) -> Iterator[tuple[int, str]]:
    """Line and dotted name of every import in `path`, also of those inside functions."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            # `from tidegate import spark` names tidegate.spark, so both halves are kept.
            yield from ((node.lineno, f"{node.module}.{alias.name}") for alias in node.names)


def words(name: str) -> set[str]:
    """The words of a module or class name."""
    return {word.lower() for word in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+", name)}


def test_there_are_modules_to_look_at() -> None:
    assert all(any(package.rglob("*.py")) for package in PACKAGES)


def test_imports_keep_the_direction_of_the_design() -> None:
    program = "from importlinter.cli import lint_imports; raise SystemExit(lint_imports('setup.cfg', no_cache=True))"
    run = subprocess.run([sys.executable, "-c", program], cwd=REPOSITORY, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout + run.stderr
    assert " kept, 0 broken" in run.stdout


def test_no_module_imports_itself_by_way_of_others() -> None:
    """At every level: inside functions, for type checkers, and between the children of each package."""
    graph = import_graph.import_graph(import_graph.modules_of(package.parent for package in PACKAGES))
    assert len(graph) > 400
    assert import_graph.all_cycles(graph) == []


@pytest.mark.parametrize(
    ("edges", "found"),
    [
        ({"p.a": {"p.b"}, "p.b": {"p.c"}, "p.c": {"p.a"}}, ["p.a <-> p.b <-> p.c", "in p: a <-> b <-> c"]),
        ({"p.a.x": {"p.b.x"}, "p.b.x": set(), "p.b.y": {"p.a.x"}}, ["in p: a <-> b"]),
        ({"p.a": {"p.b", "p.c"}, "p.b": {"p.c"}, "p.c": set()}, []),
    ],
    ids=["modules", "packages", "none"],
)
def test_cycles_are_found_between_modules_and_between_packages(edges: dict[str, set[str]], found: list[str]) -> None:
    assert import_graph.all_cycles(edges) == found


def test_every_package_of_the_runtime_but_the_contract_is_closed_to_the_provider() -> None:
    """The list in setup.cfg has names; a new package must be on it."""
    text = (REPOSITORY / "setup.cfg").read_text(encoding="utf-8")
    contract = text.split("[importlinter:contract:provider]")[1].split("[importlinter:contract:")[0]
    closed = set(re.findall(r"^    (tidegate\.\w+)$", contract, flags=re.MULTILINE))
    packages = {f"tidegate.{found.parent.name}" for found in PACKAGES[0].glob("*/__init__.py")}
    assert closed == packages - set(PROVIDER_MAY_IMPORT)


def test_the_provider_imports_the_contract_and_nothing_else_of_the_runtime() -> None:
    """Besides import-linter, because this one also sees imports by `from tidegate import ...`."""
    wrong = [
        f"{short(path)}:{line} {name}"
        for path in modules()
        if path.is_relative_to(PACKAGES[1])
        for line, name in imports(path)
        if name.partition(".")[0] == "tidegate"
        and not f"{name}.".startswith(tuple(f"{allowed}." for allowed in PROVIDER_MAY_IMPORT))
    ]
    assert wrong == []


def test_nothing_that_runs_code_when_read_is_imported() -> None:
    wrong = [
        f"{short(path)}:{line} {name}"
        for path in modules()
        for line, name in imports(path)
        if name.partition(".")[0] in CODE_RUNNING_FORMATS
    ]
    assert wrong == []


def test_the_runtime_measures_no_timeout_by_a_clock_that_can_be_set() -> None:
    """S1.2, S1.4: `clock.py` has one that cannot."""
    wrong = [
        f"{short(path)}:{node.lineno}"
        for path in PACKAGES[0].rglob("*.py")
        if path.relative_to(PACKAGES[0]).as_posix() not in WALL_CLOCK_READERS
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Attribute) and ast.unparse(node) in {"time.time", "time.time_ns", "datetime.now"}
    ]
    assert wrong == []


def test_no_folder_has_more_modules_than_one_looks_through() -> None:
    sizes = Counter(short(path.parent) for path in modules() if path.name != "__init__.py")
    assert {folder: n for folder, n in sizes.items() if n > LARGEST_FOLDER} == {}


def python_files() -> list[Path]:
    """All of the repository, tests and tools included."""
    folders = ("benchmarks", "dags", "provider", "spark_runtime", "tests", "tools")
    return sorted(path for folder in folders for path in (REPOSITORY / folder).rglob("*.py"))


def lines_of(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """From the first statement to the last; a docstring is none."""
    body = function.body[1:] if ast.get_docstring(function) is not None else function.body
    return 0 if not body else (function.end_lineno or 0) - body[0].lineno + 1


def test_no_function_is_longer_than_one_sees() -> None:
    found = [
        (lines_of(node), f"{short(path)}:{node.lineno} {node.name}")
        for path in python_files()
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    ]
    assert len(found) > 5_000
    assert [entry for entry in found if entry[0] > LONGEST_FUNCTION] == []


@pytest.mark.parametrize(
    ("source", "lines"),
    [("def f():\n    a\n    b", 2), ('def f(\n    a,\n):\n    """Of it."""\n    return (\n        a\n    )', 3)],
)
def test_a_function_is_as_long_as_its_statements(source: str, lines: int) -> None:
    (function,) = ast.parse(source).body
    assert isinstance(function, ast.FunctionDef) and lines_of(function) == lines


def test_few_functions_are_excepted_from_the_limits_of_complexity_and_each_for_a_reason() -> None:
    excepted = [
        f"{short(path)}:{number} {line.partition('# noqa')[2]}"
        for path in python_files()
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if re.search(r"# noqa: (?:[A-Z]+\d+, )*(?:C901|PLR09\d\d)\b", line)
    ]
    assert 0 < len(excepted) <= MOST_EXCEPTIONS
    assert [one for one in excepted if not re.search(r" - \w+ \w+", one)] == []
    text = (REPOSITORY / "ruff.toml").read_text(encoding="utf-8")
    ignored = text.partition("[lint.per-file-ignores]")[2].partition("[lint.mccabe]")[0] + text.partition("ignore =")[2]
    assert "C901" not in ignored and "PLR09" not in ignored


def test_module_and_class_names_say_what_they_hold() -> None:
    wrong = [
        short(path) for path in modules() if words(path.stem) & EMPTY_NAMES or words(path.parent.name) & EMPTY_NAMES
    ]
    wrong += [
        f"{short(path)}:{node.lineno} class {node.name}"
        for path in modules()
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.ClassDef) and words(node.name) & EMPTY_NAMES
    ]
    assert wrong == []


def late_constants(tree: ast.Module) -> list[str]:
    """Names that a module assigns after its first function or class, and that need none of these."""
    definitions = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    defined: set[str] = set()
    late = []
    for node in tree.body:
        if isinstance(node, definitions):
            defined.add(node.name)
        elif isinstance(node, ast.Import | ast.ImportFrom) and defined:  # which comes late for a reason
            defined.update(alias.asname or alias.name for alias in node.names)
        elif isinstance(node, ast.Assign | ast.AnnAssign) and defined:
            names = [name for name in ast.walk(node) if isinstance(name, ast.Name)]
            assigned = [name.id for name in names if isinstance(name.ctx, ast.Store)]
            if defined.isdisjoint(name.id for name in names if isinstance(name.ctx, ast.Load)):
                late += assigned
            else:
                defined.update(assigned)
    return late


def test_constants_stand_at_the_top_of_their_module() -> None:
    found = {short(path): late_constants(ast.parse(path.read_text(encoding="utf-8"))) for path in modules()}
    assert {path: names for path, names in found.items() if names} == {}


@pytest.mark.parametrize(
    ("source", "late"),
    [
        ("A = 1\nclass B: ...", []),
        ("class B: ...\nA: int = 1\nC = 2", ["A", "C"]),
        ("def b(): ...\nA = b()\nC = {1: A}", []),
    ],
)
def test_a_constant_that_is_made_of_a_function_or_class_may_follow_it(source: str, late: list[str]) -> None:
    assert late_constants(ast.parse(source)) == late


def test_every_module_says_what_it_is() -> None:
    """Empty `__init__.py` files aside: their package says it in docs/architecture.md."""
    texts = {short(path): path.read_text(encoding="utf-8") for path in modules()}
    assert [path for path, text in texts.items() if text.strip() and not ast.get_docstring(ast.parse(text))] == []


@pytest.mark.parametrize(
    ("name", "expected"),
    [("utils", {"utils"}), ("IOManager", {"io", "manager"}), ("job_core2", {"job", "core", "2"}), ("score", {"score"})],
)
def test_names_are_taken_apart_at_case_and_underscore(name: str, expected: set[str]) -> None:
    assert words(name) == expected


def calls(path: Path) -> Iterator[tuple[int, str, str]]:
    """Line, function and arguments of every call in `path`, as source."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Call):
            yield node.lineno, ast.unparse(node.func), ", ".join(map(ast.unparse, node.args))


def test_a_package_has_one_logger() -> None:
    """Of its name: `tidegate.coordinator` also for packages inside it, `airflow_tidegate` for modules beside them."""
    loggers = Counter(
        (".".join(path.relative_to(package.parent).parts[:-1][:2]), name)
        for package in PACKAGES
        for path in package.rglob("*.py")
        if path.name != "log_format.py"
        for _, function, name in calls(path)
        if function.endswith("getLogger")
    )
    assert len(loggers) >= 10
    assert [name for package, name in loggers if name != repr(package)] == []


def test_what_goes_wrong_is_logged_and_not_printed() -> None:
    """ruff's T20 holds the same of `print`."""
    wrong = [
        f"{short(path)}:{line}"
        for path in modules()
        if not path.is_relative_to(PACKAGES[0] / "cli")
        for line, function, _ in calls(path)
        if function.startswith("traceback.print_") or function in {"sys.stdout.write", "sys.stderr.write"}
    ]
    assert wrong == []


def test_decisions_of_the_coordinator_are_not_logged_where_they_are_made() -> None:
    """Pure modules return actions or remarks; whoever carries them out logs."""
    logging_modules = {
        path.relative_to(PACKAGES[0] / "coordinator").as_posix()
        for path in (PACKAGES[0] / "coordinator").rglob("*.py")
        if any(name == "logging" for _, name in imports(path))
    }
    assert logging_modules == {"driver_job.py", "garbage/shared_files.py", "late_commit.py", "split_search.py"}


def test_no_test_is_skipped_or_expected_to_fail() -> None:
    allowed = {Path(__file__).name}
    wrong = [
        f"{short(path)}:{number}"
        for path in sorted((REPOSITORY / "tests").rglob("*.py"))
        if path.name not in allowed
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if re.search(r"\b(mark\.skip|mark\.skipif|mark\.xfail|pytest\.skip\(|pytest\.xfail\(|importorskip)", line)
    ]
    assert wrong == []


def test_test_files_have_names_of_their_own() -> None:
    """Test folders are no packages, so two files of one name would hide each other."""
    seen: dict[str, list[str]] = {}
    for path in (REPOSITORY / "tests").rglob("test_*.py"):
        seen.setdefault(path.name, []).append(short(path))
    assert [paths for paths in seen.values() if len(paths) > 1] == []


def test_no_unfinished_work_is_marked_in_the_code() -> None:
    mark = re.compile(r"#.*\b(TODO|FIXME|XXX)\b")
    wrong = [
        f"{short(path)}:{number}"
        for path in modules()
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if mark.search(line)
    ]
    assert wrong == []
