"""Pinned code."""

from __future__ import annotations

import os
import secrets
from pathlib import Path

import pytest

from tidegate.errors import PipelineError, RecordError
from tidegate.jobs.artifacts import artifact
from tidegate.jobs.artifacts.artifact import PackedArtifact, pack, resolve_pipeline, unpack_artifact, upload
from tidegate.jobs.layout import JobLayout
from tidegate.jobs.stores.in_memory import MemoryStore

LAYOUT = JobLayout("job")
EXPLOSIVE = "raise SystemExit('imported')\n"


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore(secrets.token_hex(8))


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """A package with a sub-package; importing any of it ends the test."""
    root = tmp_path / "project" / "pipelines"
    for name in ("__init__.py", "flights.py", "deep/__init__.py", "deep/hourly.py", "data.csv"):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(EXPLOSIVE)
    return root


def unpacked(store: MemoryStore, sha256: str, target: Path) -> dict[str, str]:
    unpack_artifact(store, LAYOUT, sha256, str(target))
    return {str(p.relative_to(target)): p.read_text() for p in sorted(target.rglob("*")) if p.is_file()}


def test_a_file_comes_back_as_it_was(store: MemoryStore, tmp_path: Path) -> None:
    (tmp_path / "flights.py").write_text("def build(args): ...\n")
    sha256 = upload(store, LAYOUT, pack(str(tmp_path / "flights.py")))
    (tmp_path / "flights.py").write_text("changed")
    assert unpacked(store, sha256, tmp_path / "out") == {"flights.py": "def build(args): ...\n"}


def test_a_package_keeps_its_name(store: MemoryStore, package: Path, tmp_path: Path) -> None:
    sha256 = upload(store, LAYOUT, pack(str(package)))
    assert set(unpacked(store, sha256, tmp_path / "out")) == {
        "pipelines/__init__.py",
        "pipelines/data.csv",
        "pipelines/flights.py",
        "pipelines/deep/__init__.py",
        "pipelines/deep/hourly.py",
    }


def test_caches_hidden_names_and_environments_stay_out(tmp_path: Path) -> None:
    for name in (
        "a.py",
        "__pycache__/a.pyc",
        ".git/config",
        ".env",
        "b.pyc",
        "env/pyvenv.cfg",
        "env/lib/x.py",
        ".venv/y",
        "jobs/orders/specs/000001.json",
        "jobs/orders/artifacts/aa/code.zip",
        "jobs/orders/decisions/0000000001.json",
    ):
        (tmp_path / "code" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "code" / name).write_text("x")
    assert [path for path, _ in pack(str(tmp_path / "code")).files] == ["a.py"]


def test_the_same_content_has_the_same_name_wherever_it_lies(tmp_path: Path) -> None:
    for folder in ("one", "two"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "a.py").write_text("x")
    os.utime(tmp_path / "two" / "a.py", (1, 1))
    first, second = pack(str(tmp_path / "one")), pack(str(tmp_path / "two"))
    assert first == second
    (tmp_path / "two" / "a.py").write_text("y")
    assert pack(str(tmp_path / "two")).sha256 != first.sha256


def test_uploading_twice_is_uploading_once(store: MemoryStore, package: Path) -> None:
    packed = pack(str(package))
    assert upload(store, LAYOUT, packed) == upload(store, LAYOUT, packed) == packed.sha256
    assert store.walk("") == [LAYOUT.artifact_code(packed.sha256), LAYOUT.artifact_manifest(packed.sha256)]


def test_an_upload_that_was_cut_short_is_finished_by_the_next(
    store: MemoryStore, package: Path, tmp_path: Path
) -> None:
    packed = pack(str(package))
    upload(store, LAYOUT, packed)
    store.delete(LAYOUT.artifact_manifest(packed.sha256))
    with pytest.raises(RecordError, match="a file of it is missing"):
        unpack_artifact(store, LAYOUT, packed.sha256, str(tmp_path / "out"))
    upload(store, LAYOUT, packed)
    assert len(unpacked(store, packed.sha256, tmp_path / "out")) == 5


@pytest.mark.parametrize("part", ["manifest", "code"])
def test_changed_code_is_not_run(store: MemoryStore, package: Path, tmp_path: Path, part: str) -> None:
    sha256 = upload(store, LAYOUT, pack(str(package)))
    path = LAYOUT.artifact_manifest(sha256) if part == "manifest" else LAYOUT.artifact_code(sha256)
    data = bytearray(store.read(path))
    data[len(data) // 2] ^= 1
    store.replace(path, bytes(data))
    with pytest.raises(RecordError, match="pinned code cannot be used"):
        unpack_artifact(store, LAYOUT, sha256, str(tmp_path / "out"))
    assert not (tmp_path / "out").exists()


def test_other_code_under_the_name_is_not_run(store: MemoryStore, package: Path, tmp_path: Path) -> None:
    (tmp_path / "evil.py").write_text("x")
    sha256 = upload(store, LAYOUT, pack(str(package)))
    other = upload(store, LAYOUT, pack(str(tmp_path / "evil.py")))
    store.replace(LAYOUT.artifact_code(sha256), store.read(LAYOUT.artifact_code(other)))
    with pytest.raises(RecordError, match="code.zip is damaged"):
        unpack_artifact(store, LAYOUT, sha256, str(tmp_path / "out"))


def test_a_well_formed_archive_with_other_content_is_not_run(store: MemoryStore, package: Path, tmp_path: Path) -> None:
    packed = pack(str(package))
    upload(store, LAYOUT, packed)
    forged = PackedArtifact(packed.sha256, tuple((path, content[::-1]) for path, content in packed.files))
    store.replace(LAYOUT.artifact_code(packed.sha256), artifact._zipped(forged))
    with pytest.raises(RecordError, match="pipelines/__init__.py does not match its checksum"):
        unpack_artifact(store, LAYOUT, packed.sha256, str(tmp_path / "out"))
    assert not (tmp_path / "out").exists()


def test_too_much_is_refused_with_the_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "code").mkdir()
    for n in range(3):
        (tmp_path / "code" / f"{n}.py").write_text("x" * 100)
    monkeypatch.setattr(artifact, "MAX_FILES", 2)
    with pytest.raises(PipelineError, match="over 2 files"):
        pack(str(tmp_path / "code"))
    monkeypatch.setattr(artifact, "MAX_FILES", 10)
    monkeypatch.setattr(artifact, "MAX_BYTES", 250)
    with pytest.raises(PipelineError, match="too large to be stored with the job"):
        pack(str(tmp_path / "code"))


def test_nothing_to_pack_is_refused(tmp_path: Path) -> None:
    with pytest.raises(PipelineError, match="file or folder does not exist"):
        pack(str(tmp_path / "missing"))
    (tmp_path / "empty").mkdir()
    with pytest.raises(PipelineError, match="contains no files"):
        pack(str(tmp_path / "empty"))


def test_a_lone_file_is_packed_alone(tmp_path: Path) -> None:
    (tmp_path / "flights.py").write_text(EXPLOSIVE)
    assert resolve_pipeline(f"{tmp_path}/flights.py:build") == (str(tmp_path / "flights.py"), "flights:build")


def test_a_file_in_a_package_brings_the_top_package(package: Path) -> None:
    assert resolve_pipeline(f"{package}/deep/hourly.py:build") == (str(package), "pipelines.deep.hourly:build")


def test_a_module_is_found_from_the_working_directory(package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(package.parent)
    assert resolve_pipeline("pipelines.flights:build") == (str(package), "pipelines.flights:build")
    assert resolve_pipeline("pipelines:build") == (str(package), "pipelines:build")


def test_a_module_is_found_on_the_import_path(package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(package.parent))
    assert resolve_pipeline("pipelines.deep.hourly:build")[1] == "pipelines.deep.hourly:build"


def test_a_code_root_is_packed_as_a_whole(package: Path) -> None:
    root = package.parent
    assert resolve_pipeline("pipelines.flights:build", str(root)) == (str(root), "pipelines.flights:build")
    assert resolve_pipeline("pipelines/flights.py:build", str(root)) == (str(root), "pipelines.flights:build")
    assert resolve_pipeline("flights.py:build", str(package)) == (str(package), "pipelines.flights:build")


def test_what_is_resolved_can_be_imported_from_what_is_packed(
    store: MemoryStore, package: Path, tmp_path: Path
) -> None:
    for code_root in (None, str(package), str(package.parent)):
        path, name = resolve_pipeline(f"{package}/deep/hourly.py:build", code_root)
        out = tmp_path / secrets.token_hex(4)
        unpack_artifact(store, LAYOUT, upload(store, LAYOUT, pack(path)), str(out))
        assert (out / (name.partition(":")[0].replace(".", "/") + ".py")).is_file()


@pytest.mark.parametrize("pipeline", ["flights.py", "flights", ":build", "flights.py:", "flights.py:not valid", ""])
def test_a_pipeline_without_function_is_refused_with_the_form(pipeline: str) -> None:
    with pytest.raises(PipelineError, match="Write path/to/file.py:build or package.module:build"):
        resolve_pipeline(pipeline)


def test_a_missing_file_or_module_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(PipelineError, match=rf"Python file does not exist \[{tmp_path}/nowhere.py\]"):
        resolve_pipeline("nowhere.py:build")
    with pytest.raises(PipelineError, match="there is no Python module 'nowhere.at_all'"):
        resolve_pipeline("nowhere.at_all:build")
    with pytest.raises(PipelineError, match="code root, .* does not exist"):
        resolve_pipeline("nowhere:build", str(tmp_path / "missing"))


def test_a_file_outside_of_the_code_root_is_refused(package: Path, tmp_path: Path) -> None:
    (tmp_path / "else.py").write_text("")
    with pytest.raises(PipelineError, match="outside the code root"):
        resolve_pipeline(f"{tmp_path}/else.py:build", str(package))


def test_a_file_that_cannot_be_imported_is_refused(tmp_path: Path) -> None:
    (tmp_path / "my-flights.py").write_text("")
    with pytest.raises(PipelineError, match="is not a module name that Python can import"):
        resolve_pipeline(f"{tmp_path}/my-flights.py:build")


def test_a_module_in_a_folder_that_is_no_package_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "plain").mkdir()
    (tmp_path / "plain" / "flights.py").write_text("")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(PipelineError, match="is not a Python package.*plain/flights.py:"):
        resolve_pipeline("plain.flights:build")
