"""What a call of the command line loads: its verb and no more, and a clear error where the runtime is missing."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest
from cli_caller import Caller

from tidegate.cli.main import main, parser
from tidegate.cli.verb_registry import RUNTIME, VERBS, Verb
from tidegate.jobs.client.job_client import JobClient

MOST_MODULES = 200
"""That a verb which only reads may load, Python's own included: `tidegate status` runs in loops and on small hosts."""
HEAVY = {"pyarrow", "numpy", "numba", "pyspark", "airflow"}
CALL = """
import sys
from tidegate.cli.main import main
code = main(sys.argv[1:])
print("loaded", *sorted(sys.modules))
sys.exit(code)
"""
WITHOUT_RUNTIME = """
import sys

class WithoutRuntime:
    there = sys.stdlib_module_names | {"tidegate", "fsspec", "pendulum"}

    def __init__(self, finder):
        self._finder = finder

    def find_spec(self, name, path=None, target=None):
        return self._finder.find_spec(name, path, target) if name.partition(".")[0] in self.there else None

sys.meta_path[:] = [WithoutRuntime(finder) for finder in sys.meta_path]
from tidegate.cli.main import main
sys.exit(main(sys.argv[1:]))
"""


def call(program: str, *words: str) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST", "COV"))}
    command = [sys.executable, "-c", program, *words]
    return subprocess.run(command, capture_output=True, text=True, env=environment, check=False)


@pytest.fixture
def root(tmp_path: Path) -> str:
    (tmp_path / "pipe.py").write_text("def build(args): ...\n")
    root = str(tmp_path / "root")
    JobClient(root, "flights").submit(pipeline=f"{tmp_path}/pipe.py:build")
    return root


@pytest.mark.parametrize("words", [("status", "flights"), ("list",), ("checkpoints", "flights")])
def test_a_verb_that_only_reads_loads_little(root: str, words: tuple[str, ...]) -> None:
    done = call(CALL, *words, "--root", root)
    assert done.returncode == 0, done.stderr
    loaded = set(done.stdout.partition("loaded")[2].split())
    assert "tidegate.cli.jobs.inspection" in loaded
    assert len(loaded) < MOST_MODULES
    assert {name.partition(".")[0] for name in loaded}.isdisjoint(HEAVY)
    assert {name for name in loaded if name.startswith("tidegate.cli.upkeep")} == set()


@pytest.mark.parametrize("verb", VERBS.values(), ids=VERBS)
def test_every_verb_names_a_function_that_declares_its_arguments(verb: Verb) -> None:
    module, _, name = verb.arguments.partition(":")
    assert callable(getattr(import_module(module), name))
    assert verb.help


@pytest.mark.parametrize("target", RUNTIME.values(), ids=RUNTIME)
def test_every_target_of_the_runtime_exists(target: str) -> None:
    module, _, name = target.partition(":")
    assert callable(getattr(import_module(module), name))


@pytest.mark.parametrize("verb", VERBS)
def test_the_grammar_of_a_verb_is_complete_when_it_is_called(verb: str) -> None:
    made = parser([verb, "--help"])
    text = " ".join(made.format_help().split())  # a narrow terminal breaks its lines
    assert all(f"{name} {line.help}" in text for name, line in VERBS.items())
    (verbs,) = (action for action in made._actions if action.choices)
    called = dict(verbs.choices or {})[verb]
    assert called.description
    assert verb == "snapshot" or called.get_default("run") is not None


def test_the_version_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        parser(["--version"]).parse_args(["--version"])
    assert left.value.code == 0
    assert capsys.readouterr().out.startswith("tidegate 0.")


@pytest.mark.parametrize(
    ("verb", "words"),
    [
        ("gc", ("gc", "flights")),
        ("commit-pending", ("commit-pending", "flights")),
        ("snapshot inspect", ("snapshot", "inspect", "flights/checkpoints/chk-1")),
        ("snapshot read", ("snapshot", "read", "flights/checkpoints/chk-1", "--uid", "u", "--state", "s")),
        ("snapshot check", ("snapshot", "check", "flights/checkpoints/chk-1", "p.py:build")),
        ("start", ("start", "p.py:build", "--job-id", "other")),
        ("restore", ("restore", "flights")),
        ("fork", ("fork", "flights", "--job-id", "other")),
        ("rescale", ("rescale", "flights", "--parallelism", "2")),
    ],
)
def test_without_the_runtime_a_verb_that_needs_it_says_which_extra(
    root: str, verb: str, words: tuple[str, ...]
) -> None:
    done = call(WITHOUT_RUNTIME, *words, "--root", root)
    assert done.returncode == 12, done.stderr
    (line,) = done.stderr.splitlines()
    assert f"`tidegate {verb}` needs the runtime" in line
    assert "not installed" in line and "tidegate[spark]" in line
    assert done.stdout == ""


@pytest.mark.parametrize("words", [(verb,) for verb in VERBS] + [("snapshot", "check")])
def test_help_needs_no_runtime(words: tuple[str, ...]) -> None:
    done = call(WITHOUT_RUNTIME, *words, "--help")
    assert done.returncode == 0, done.stderr
    assert f"usage: tidegate {' '.join(words)}" in done.stdout


@pytest.mark.parametrize("words", [("status", "flights"), ("list",), ("logs", "flights"), ("cancel", "flights")])
def test_a_client_without_the_runtime_reads_and_commands_jobs(root: str, words: tuple[str, ...]) -> None:
    done = call(WITHOUT_RUNTIME, *words, "--root", root)
    assert done.returncode == 0, done.stderr


def test_a_mistake_of_ours_is_not_taken_for_a_missing_package(
    tidegate: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "tidegate.cli.upkeep.job_garbage", None)
    answer = tidegate("gc")
    assert answer.code == 70
    assert "this is a bug in tidegate" in answer.err


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (
            ["start", "p.py:build", "--job-id", "j", "--optoin", "a=1"],
            "tidegate start]. Did you mean '--option'? See `t",
        ),
        (["start", "p.py:build", "--optoin=a=1"], "arguments: --optoin=a=1 [tidegate start]. Did you mean '--option'?"),
        (
            ["snapshot", "read", "path", "--uid", "u", "--state", "s", "--limt", "3"],
            "[tidegate snapshot read]. Did you mean '--limit'?",
        ),
        (["status", "flights", "--zzzzzz"], "arguments: --zzzzzz [tidegate status]. See `tidegate status --help`"),
        (["status", "flights", "other"], "arguments: other [tidegate status]. See `tidegate status --help`"),
        (["--jsn", "list"], "arguments: --jsn [tidegate]. See `tidegate --help`"),
        (
            ["snapshot", "inspekt", "path"],
            "'inspekt' is not a value of VERB [tidegate snapshot]. Did you mean 'inspect'?",
        ),
        (["reject", "j", "--checkpoint", "1", "--then", "replai"], "'replai' is not a value of --then"),
        (["reject", "j", "--checkpoint", "1", "--then", "replai"], "Did you mean 'replay'? Use one of stop, replay"),
        (["agent", "--launcher", "yran"], "Did you mean 'yarn'? Use one of local, spark-submit, yarn, kubernetes"),
        (["agent", "--launcher", "zzzz"], "[tidegate agent]. Use one of local, spark-submit, yarn, kubernetes"),
        (["start", "p.py:build", "--job-id", "j", "--option", "paralelism=2"], "'parallelism'"),
        (["start", "p.py:build", "--job-id", "j", "--option", "state_backend=rocksdbb"], "'rocksdb'"),
        (["stats"], "Did you mean 'status'?"),
    ],
)
def test_a_wrong_word_is_answered_with_the_nearest_right_one(
    words: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*words, *(["--root", "memory://wrong-words"] if words[0] in ("start", "reject") else [])]) == 2
    assert told in capsys.readouterr().err


@pytest.mark.parametrize("words", [("start",), ("restore",), ("fork",), ("snapshot", "check")])
def test_the_help_names_packed_files_as_pipelines(words: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main([*words, "--help"])
    assert "a file of `tidegate pack`" in " ".join(capsys.readouterr().out.split())


def test_the_package_is_the_command_too() -> None:
    """For environments whose scripts are not on PATH."""
    by_package = [sys.executable, "-m", "tidegate", "--version"]
    called = subprocess.run(by_package, capture_output=True, text=True, check=False)
    assert (called.returncode, called.stdout) == (0, call(CALL, "--version").stdout.partition("loaded")[0])
