"""The local and the memory store; what is theirs alone besides the contract."""

from __future__ import annotations

import os
import secrets
import sys
from importlib import import_module
from pathlib import Path

import pytest
from store_suites.store_conformance import StoreConformance

from tidegate.errors import AlreadyExistsError, MissingExtraError, StoreError
from tidegate.jobs.stores import local_disk
from tidegate.jobs.stores.in_memory import MemoryStore
from tidegate.jobs.stores.local_disk import LocalStore
from tidegate.jobs.stores.probe import probe_store
from tidegate.jobs.stores.store import Store
from tidegate.jobs.stores.store_registry import STORES, StoreKind, open_store


class TestLocalStore(StoreConformance):
    @pytest.fixture(autouse=True)
    def _root(self, tmp_path: Path) -> None:
        self.root = tmp_path / "made" / "when first written"

    def make_store(self) -> Store:
        return open_store(str(self.root))


class TestMemoryStore(StoreConformance):
    def make_store(self) -> Store:
        return open_store(f"memory://{secrets.token_hex(8)}")


class TestMemoryStoreBelowAnother(StoreConformance):
    def make_store(self) -> Store:
        return open_store(f"memory://{secrets.token_hex(8)}/with/folders")


def test_memory_stores_of_one_name_share_their_objects() -> None:
    name = secrets.token_hex(8)
    open_store(f"memory://{name}").create("a/object", b"x")
    assert open_store(f"memory://{name}/a").read("object") == b"x"
    assert open_store(f"memory://{name}-other").list("") == []


def test_a_local_store_opens_by_path_and_by_file_url(tmp_path: Path) -> None:
    open_store(str(tmp_path)).create("object", b"x")
    assert open_store(f"file://{tmp_path}").read("object") == b"x"
    assert open_store(f"file://{tmp_path}").url == str(tmp_path)
    assert open_store(str(tmp_path)).local_path("object") == str(tmp_path / "object")


def test_a_relative_root_is_made_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert open_store("jobs").url == str(tmp_path / "jobs")


def test_a_crash_before_the_link_leaves_no_object(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = LocalStore(str(tmp_path))

    def power_cut(source: str, target: str) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "link", power_cut)
    with pytest.raises(KeyboardInterrupt):
        store.create("a/object", b"half")
    assert store.walk("") == []


def test_left_over_temporary_files_are_never_listed(tmp_path: Path) -> None:
    store = LocalStore(str(tmp_path))
    store.create("a/object", b"x")
    (tmp_path / "a" / f"{local_disk.TEMPORARY_PREFIX}left").write_bytes(b"half")
    assert store.list("a") == ["object"]
    assert store.walk("") == ["a/object"]


def test_a_folder_that_vanishes_under_a_writer_is_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = LocalStore(str(tmp_path))
    real, prunings = os.open, iter([True, True, False])

    def pruned_first(path: str, flags: int, mode: int = 0o777) -> int:
        if flags & os.O_EXCL and next(prunings, False):
            os.rmdir(os.path.dirname(path)) if os.path.isdir(os.path.dirname(path)) else None
        return real(path, flags, mode)

    monkeypatch.setattr(os, "open", pruned_first)
    store.create("a/object", b"x")
    assert store.read("a/object") == b"x"


def test_a_write_protected_root_gives_one_clear_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def denied(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    store = LocalStore(str(tmp_path))
    monkeypatch.setattr(os, "mkdir", denied)
    with pytest.raises(
        StoreError, match="no access to a file in the root.*Give the user that runs this process"
    ) as failure:
        store.probe()
    assert failure.value.where == str(tmp_path)


def test_a_disk_that_does_not_answer_is_not_taken_for_missing_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S2.3: garbage collection deletes what it does not find used, so a partial listing must be an error."""

    def failing(*_: object, **__: object) -> None:
        raise OSError(5, "Input/output error")

    store = LocalStore(str(tmp_path))
    store.create("a/object", b"x")
    assert store.exists("a/object") and not store.exists("a/missing") and not store.exists("a")
    assert store.walk("a") == ["a/object"] and store.walk("missing") == []
    with monkeypatch.context() as patch:
        patch.setattr(os, "stat", failing)
        with pytest.raises(StoreError, match="Input/output error"):
            store.exists("a/object")
    with monkeypatch.context() as patch:
        patch.setattr(os, "scandir", failing)
        with pytest.raises(StoreError, match="Input/output error"):
            store.walk("a")


def test_a_root_that_is_a_file_gives_one_clear_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    store = open_store(str(tmp_path / "file"))
    for use in (store.probe, lambda: store.list("")):
        with pytest.raises(StoreError, match=rf"the path is a file, not a folder \[{tmp_path}/file\]"):
            use()


def test_a_probe_does_not_make_the_root(tmp_path: Path) -> None:
    open_store(str(tmp_path / "not" / "there")).probe()
    assert list(tmp_path.iterdir()) == []


def test_a_probe_of_a_root_that_cannot_be_made_fails(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StoreError, match="the path is a file"):
        open_store(str(tmp_path / "file" / "root")).probe()


def test_a_file_system_without_hard_links_fails_the_probe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def unsupported(source: str, target: str) -> None:
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr(os, "link", unsupported)
    with pytest.raises(StoreError, match="hard links"):
        LocalStore(str(tmp_path)).probe()


class OverwritingStore(MemoryStore):
    """Checks, then writes: exactly what must not pass."""

    def create(self, path: str, data: bytes) -> None:
        self.replace(path, data)


class ForgetfulStore(MemoryStore):
    """Lists from a cache that knows nothing yet."""

    def list(self, folder: str) -> list[str]:
        return []


class HalfBlindStore(MemoryStore):
    """Replaces nothing."""

    def replace(self, path: str, data: bytes) -> None:
        return


@pytest.mark.parametrize(
    ("broken", "reason"),
    [
        (OverwritingStore, "a second create of one object succeeded"),
        (ForgetfulStore, "a listing does not show"),
        (HalfBlindStore, "does not return the new content of a replaced object"),
    ],
)
def test_the_probe_refuses_a_store_that_breaks_its_promise(broken: type[MemoryStore], reason: str) -> None:
    store = broken(secrets.token_hex(8))
    with pytest.raises(StoreError, match=reason):
        probe_store(store)
    assert MemoryStore.walk(store, "") == []


@pytest.mark.parametrize("url", ["gs://bucket/x", "https://host/x", "hdfs://host/x"])
def test_a_store_without_create_only_writes_is_refused_and_the_supported_ones_named(url: str) -> None:
    with pytest.raises(StoreError, match="is not a supported store.*s3://"):
        open_store(url)


@pytest.mark.parametrize("url", ["", "file://host/x", "s3://"])
def test_a_malformed_root_is_refused(url: str) -> None:
    with pytest.raises(StoreError):
        open_store(url)


def test_a_loser_of_a_create_learns_which_object_was_there(tmp_path: Path) -> None:
    store = LocalStore(str(tmp_path))
    store.create("a/object", b"x")
    with pytest.raises(AlreadyExistsError) as refusal:
        store.create("a/object", b"y")
    assert refusal.value.where == str(tmp_path / "a" / "object")


@pytest.mark.parametrize("kind", STORES.values(), ids=STORES)
def test_every_scheme_names_a_class_that_is_a_store(kind: StoreKind) -> None:
    module, _, name = kind.target.partition(":")
    assert Store in getattr(import_module(module), name).__mro__


def test_a_missing_package_of_a_store_is_one_error_that_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tidegate.jobs.stores.s3", None)
    with pytest.raises(MissingExtraError, match="s3:// needs the package s3fs.*tidegate\\[s3\\]"):
        open_store("s3://bucket/prefix")
