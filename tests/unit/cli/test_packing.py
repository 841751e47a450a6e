"""`tidegate pack`: a pipeline and its packages in one file, which is pinned and loaded as any other pipeline."""

from __future__ import annotations

import io
import json
import secrets
import sysconfig
import zipfile
from pathlib import Path

import pytest

from tidegate.api.loader.pipeline_loader import load_pipeline
from tidegate.cli.main import main
from tidegate.cli.upkeep.pack import packed_pipeline, run_pip
from tidegate.errors import PipelineError
from tidegate.jobs.artifacts.artifact import pack, resolve_pipeline, unpack_artifact, upload
from tidegate.jobs.artifacts.packed_pipeline import DESCRIPTION, check_unpacked, read_packed
from tidegate.jobs.layout import JobLayout
from tidegate.jobs.stores.in_memory import MemoryStore

CODE = """
import pyarrow as pa
from tidegate import DataGen, Discard, Pipeline
import tidegate_tiny_words

def build(rows: int) -> Pipeline:
    p = Pipeline()
    source = DataGen(dict, pa.schema([("a", pa.int64())]), rows=rows)
    p.read(source, uid=tidegate_tiny_words.NAME).write(Discard(), uid="out")
    return p
"""
LAYOUT = JobLayout("job")


def wheel(folder: Path, name: str, files: dict[str, str], tag: str = "py3-none-any") -> None:
    """A wheel that pip installs."""
    info = f"{name}-1.0.dist-info"
    whole = {
        **files,
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name.replace('_', '-')}\nVersion: 1.0\n",
        f"{info}/WHEEL": f"Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: {tag}\n",
    }
    record = "".join(f"{path},,\n" for path in [*whole, f"{info}/RECORD"])
    with zipfile.ZipFile(folder / f"{name}-1.0-{tag}.whl", "w") as archive:
        for path, content in {**whole, f"{info}/RECORD": record}.items():
            archive.writestr(path, content)


@pytest.fixture
def pipeline(tmp_path: Path) -> str:
    (tmp_path / "words.py").write_text(CODE)
    return str(tmp_path / "words.py")


@pytest.fixture
def requirements(tmp_path: Path) -> str:
    """Of two wheels in a folder; one is a package that the runtime has itself."""
    wheels = tmp_path / "wheels"
    wheels.mkdir()
    wheel(wheels, "tidegate_tiny_words", {"tidegate_tiny_words/__init__.py": "NAME = 'packed'\n"})
    file = tmp_path / "requirements.txt"
    file.write_text(f"--no-index\n--find-links {wheels}\ntidegate-tiny-words==1.0\n")
    return str(file)


def packed_to(folder: Path, pipeline: str, *more: str, name: str = "p.zip") -> Path:
    assert main(["pack", f"{pipeline}:build", *more, "-o", str(folder / name)]) == 0
    return folder / name


def test_a_packed_pipeline_brings_its_packages_and_runs_from_the_job_directory(
    tmp_path: Path, pipeline: str, requirements: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """S9.3: what is pinned is what runs."""
    file = packed_to(tmp_path, pipeline, "-r", requirements)
    assert "words:build, 1 packages" in capsys.readouterr().out
    path, target = resolve_pipeline(str(file))
    assert (path, target) == (str(file), "words:build")
    store = MemoryStore(secrets.token_hex(8))
    sha256 = upload(store, LAYOUT, pack(path))
    file.unlink()
    unpack_artifact(store, LAYOUT, sha256, str(tmp_path / "unpacked"))
    graph = load_pipeline(str(tmp_path / "unpacked"), target, {"rows": "5"})
    assert [node.uid for node in graph.nodes] == ["packed", "out"]


def test_the_same_input_gives_the_same_bytes(tmp_path: Path, pipeline: str, requirements: str) -> None:
    files = [packed_to(tmp_path, pipeline, "-r", requirements, name=f"{n}.zip") for n in range(2)]
    assert files[0].read_bytes() == files[1].read_bytes()
    names = zipfile.ZipFile(io.BytesIO(files[0].read_bytes())).namelist()
    assert names == sorted(names)
    assert not [name for name in names if name.endswith((".pyc", "INSTALLER", "direct_url.json"))]


def test_the_path_of_the_interpreter_leaves_no_trace(tmp_path: Path, pipeline: str) -> None:
    """pip writes it into scripts, and their hashes, and where it was started, into the package's list of files."""

    def packed_by(interpreter: str) -> bytes:
        def install(words: object) -> None:
            assert isinstance(words, list)
            target = Path(words[words.index("--target") + 1])
            info = target / "mine-1.0.dist-info"
            info.mkdir(parents=True)
            (target / "bin").mkdir()
            (target / "bin" / "mine").write_text(f"#!{interpreter}")
            (target / "mine.py").write_text("x")
            (info / "METADATA").write_text("Metadata-Version: 2.1\nName: mine\nVersion: 1.0\n")
            own = f"../../bin/mine,sha256={interpreter},9\nmine-1.0.dist-info/direct_url.json,sha256={interpreter},9\n"
            (info / "RECORD").write_text(f"{own}mine.py,sha256=1,1\nmine-1.0.dist-info/RECORD,,\n")

        (tmp_path / "r.txt").write_text("mine\n")
        return packed_pipeline(pipeline, "words:build", str(tmp_path / "r.txt"), install)[0]

    data = packed_by("/here/python")
    assert data == packed_by("/elsewhere/bin/python3")
    record = zipfile.ZipFile(io.BytesIO(data)).read("site-packages/mine-1.0.dist-info/RECORD").decode()
    assert record == "mine.py,sha256=1,1\nmine-1.0.dist-info/RECORD,,\n"


def test_other_code_has_another_hash(tmp_path: Path, pipeline: str) -> None:
    before = packed_to(tmp_path, pipeline).read_bytes()
    Path(pipeline).write_text(CODE + "\n")
    assert packed_to(tmp_path, pipeline).read_bytes() != before


def test_packages_of_the_runtime_are_held_at_its_versions_and_left_out(tmp_path: Path, pipeline: str) -> None:
    asked: list[str] = []

    def install(words: object) -> None:
        assert isinstance(words, list)
        target = Path(words[words.index("--target") + 1])
        asked.extend(Path(words[words.index("-c") + 1]).read_text().splitlines())
        for name, file in (("numpy", "numpy/core.py"), ("mine", "mine.py")):
            info = target / f"{name}-1.0.dist-info"
            info.mkdir(parents=True)
            (target / file).parent.mkdir(exist_ok=True)
            (target / file).write_text("x")
            (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
            (info / "RECORD").write_text(f"{file},,\n{info.name}/METADATA,,\n{info.name}/RECORD,,\n")
        (target / "bin").mkdir()
        (target / "bin" / "mine").write_text("#!/here/python")

    (tmp_path / "r.txt").write_text("mine\n")
    data, names = packed_pipeline(pipeline, "words:build", str(tmp_path / "r.txt"), install)
    inside = zipfile.ZipFile(io.BytesIO(data)).namelist()
    assert names == ["mine==1.0"]
    assert "site-packages/mine.py" in inside and "words.py" in inside
    assert not [name for name in inside if "numpy" in name or "/bin/" in name]
    assert any(line.startswith("pyarrow==") for line in asked)


def test_compiled_packages_are_refused_on_another_platform(tmp_path: Path, pipeline: str) -> None:
    def install(words: object) -> None:
        assert isinstance(words, list)
        target = Path(words[words.index("--target") + 1])
        target.mkdir()
        (target / "fast.so").write_bytes(b"\x7fELF")

    (tmp_path / "r.txt").write_text("fast\n")
    data, _ = packed_pipeline(pipeline, "words:build", str(tmp_path / "r.txt"), install)
    (tmp_path / "p.zip").write_bytes(data)
    description, files = read_packed(str(tmp_path / "p.zip"))
    assert description.platform == sysconfig.get_platform()
    folder = tmp_path / "unpacked"
    folder.mkdir()
    document = dict(files)[DESCRIPTION]
    (folder / DESCRIPTION).write_bytes(document)
    check_unpacked(str(folder))
    (folder / DESCRIPTION).write_bytes(document.replace(sysconfig.get_platform().encode(), b"plan9-vax"))
    with pytest.raises(PipelineError, match="built for another Python or platform"):
        load_pipeline(str(folder), "words:build", {})


def test_what_cannot_be_packed_is_refused(tmp_path: Path, pipeline: str, capsys: pytest.CaptureFixture[str]) -> None:
    file = packed_to(tmp_path, pipeline)
    (tmp_path / "bad.txt").write_text("--no-index\nno-such-package==1\n")
    for words, code, says in (
        ([f"{pipeline}:biuld", "-o", str(tmp_path / "q.zip")], 3, "no function 'biuld', did you mean 'build'"),
        ([f"{pipeline}:main", "-o", str(tmp_path / "q.zip")], 3, "no function 'main' [words.py]: its functions are"),
        ([f"{pipeline}:build", "-o", "p.tar"], 2, "does not end in .zip"),
        ([f"{pipeline}:build", "-o", "p.zip", "-r", "none.txt"], 2, "the requirements file does not exist"),
        ([str(file), "-o", str(tmp_path / "q.zip")], 2, "packed pipeline already"),
        ([str(tmp_path / "none.zip"), "-o", str(tmp_path / "q.zip")], 3, "the packed pipeline does not exist"),
        ([f"{pipeline}:build", "-o", str(tmp_path / "q.zip"), "-r", str(tmp_path / "bad.txt")], 3, "no-such-package"),
    ):
        assert main(["pack", *words]) == code
        assert says in capsys.readouterr().err


def test_a_syntax_error_is_reported_before_packages_are_installed(
    tmp_path: Path, pipeline: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Path(pipeline).write_text("def build(:\n")
    assert main(["pack", f"{pipeline}:build", "-o", str(tmp_path / "p.zip"), "-r", "none.txt"]) == 3
    assert "syntax error [words.py]" in capsys.readouterr().err
    assert not (tmp_path / "p.zip").exists()


@pytest.mark.parametrize(
    "code",
    [
        "async def build(): ...",
        "build = make()",
        "build: Build = make()",
        "from library import build",
        "from library import make as build",
        "import build.sub",
        "from library import *",
        "if FAST:\n    def build(): ...",
        "try:\n    from fast import build\nexcept ImportError:\n    def build(): ...",
        "class build: ...",
        "def __getattr__(name): ...",
        "globals()['bu' + 'ild'] = 1",
        "make, build = pair()",
        "with setting:\n    def build(): ...",
    ],
)
def test_a_name_that_the_module_may_define_is_packed(tmp_path: Path, pipeline: str, code: str) -> None:
    """The driver finds the mistakes that remain: `pack` does not run the code."""
    Path(pipeline).write_text(code + "\n")
    packed_to(tmp_path, pipeline)


@pytest.mark.parametrize(
    "code", ["", "class Pipelines:\n    def build(self): ...", "def make():\n    def build(): ..."]
)
def test_a_name_that_the_module_does_not_define_is_refused(tmp_path: Path, pipeline: str, code: str) -> None:
    Path(pipeline).write_text(code + "\n")
    assert main(["pack", f"{pipeline}:build", "-o", str(tmp_path / "p.zip")]) == 3


def test_a_file_that_is_no_artifact_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.zip").write_bytes(b"not a zip")
    with pytest.raises(PipelineError, match="the file is not a packed pipeline, or is damaged"):
        resolve_pipeline(str(tmp_path / "a.zip"))
    with zipfile.ZipFile(tmp_path / "b.zip", "w") as archive:
        archive.writestr("a.py", "")
    with pytest.raises(PipelineError, match=f"it has no {DESCRIPTION}"):
        pack(str(tmp_path / "b.zip"))


def test_the_document_tells_the_hash(tmp_path: Path, pipeline: str, capsys: pytest.CaptureFixture[str]) -> None:
    packed_to(tmp_path, pipeline, "--json")
    document = json.loads(capsys.readouterr().out)
    assert document["pipeline"] == "words:build" and len(document["sha256"]) == 64


def test_pip_is_the_interpreters_own() -> None:
    run_pip(["--version"])
