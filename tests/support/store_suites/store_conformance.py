"""What every `Store` must do. Subclass `StoreConformance` in a test module, override `make_store`, and pytest runs it.

class TestMyStore(StoreConformance):
    def make_store(self):
        return MyStore(...)
"""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from tidegate.errors import AlreadyExistsError, NotFoundError, StoreError
from tidegate.jobs.stores.store import Store

WRITERS = 8
"""Threads that compete for one object."""
ROUNDS = 5
"""Objects they compete for."""
OUTSIDE = ("../x", "/x", "a/../x", "a//b", "", ".", "a/./b", "a\\b", "a\x00b")


class StoreConformance:
    """Tests of the contract in `tidegate.jobs.stores.store`; names say what is promised."""

    def make_store(self) -> Store:
        """A new, empty store."""
        raise NotImplementedError

    @pytest.fixture
    def store(self) -> Store:
        """The store under test."""
        return self.make_store()

    def test_what_was_created_is_read_back_byte_for_byte(self, store: Store) -> None:
        data = bytes(range(256)) * 5
        store.create("a/b/object", data)
        store.create("empty", b"")
        assert store.read("a/b/object") == data
        assert store.read("empty") == b""

    def test_buffers_are_created_as_one_object_which_no_second_create_changes(self, store: Store) -> None:
        pieces: list[bytes | memoryview] = [b"12", memoryview(bytearray(b"345")), b"", bytes(range(256)) * 1000]
        store.create_from_pieces("a/object", pieces)
        assert store.read("a/object") == b"".join(pieces)
        with pytest.raises(AlreadyExistsError):
            store.create_from_pieces("a/object", [b"other"])
        assert store.list("a") == ["object"] and store.stat("a/object").size_bytes == 256_005

    def test_a_range_of_an_object_is_read_and_ends_where_the_object_does(self, store: Store) -> None:
        store.create("a/object", bytes(range(10)))
        ranges = [(0, 10), (3, 4), (8, 5), (10, 1), (12, 1), (4, 0)]
        wanted = [bytes(range(10)), bytes(range(3, 7)), bytes((8, 9)), b"", b"", b""]
        assert [store.read_range("a/object", offset, size) for offset, size in ranges] == wanted
        with pytest.raises(NotFoundError):
            store.read_range("a/other", 0, 1)

    def test_an_object_tells_its_size_and_its_time_has_a_zone(self, store: Store) -> None:
        store.create("a/object", b"12345")
        found = store.stat("a/object")
        assert found.size_bytes == 5
        assert found.modified is None or found.modified.tzinfo is not None
        with pytest.raises(NotFoundError):
            store.stat("a/other")

    def test_a_second_create_is_refused_and_changes_nothing(self, store: Store) -> None:
        store.create("a/object", b"first")
        with pytest.raises(AlreadyExistsError):
            store.create("a/object", b"second")
        with pytest.raises(AlreadyExistsError):
            store.create("a/object", b"first")
        assert store.read("a/object") == b"first"
        assert store.list("a") == ["object"]

    def test_of_competing_creators_exactly_one_wins_and_readers_see_its_data(self, store: Store) -> None:
        start = threading.Barrier(WRITERS)

        def compete(path: str, writer: int) -> bool:
            start.wait()
            try:
                store.create(path, b"%d" % writer * 1000)
            except AlreadyExistsError:
                return False
            return True

        with ThreadPoolExecutor(WRITERS) as pool:
            for number in range(ROUNDS):
                path = f"race/{number}"
                won = list(pool.map(compete, [path] * WRITERS, range(WRITERS)))
                assert sum(won) == 1
                assert store.read(path) == b"%d" % won.index(True) * 1000

    def test_an_object_can_be_created_again_after_it_was_deleted(self, store: Store) -> None:
        store.create("a/object", b"first")
        store.delete("a/object")
        store.create("a/object", b"second")
        assert store.read("a/object") == b"second"

    def test_replace_writes_new_and_existing_objects(self, store: Store) -> None:
        store.replace("a/object", b"first")
        store.replace("a/object", b"second")
        assert store.read("a/object") == b"second"
        with pytest.raises(AlreadyExistsError):
            store.create("a/object", b"third")

    def test_readers_of_an_object_being_replaced_see_one_version_whole(self, store: Store) -> None:
        versions = {bytes([65 + n]) * 20_000 for n in range(4)}
        store.replace("hint", b"A" * 20_000)
        over = threading.Event()

        def write() -> None:
            for version in sorted(versions) * 3:
                store.replace("hint", version)
            over.set()

        with ThreadPoolExecutor(1) as pool:
            writing = pool.submit(write)
            while not over.is_set() and not writing.done():
                assert store.read("hint") in versions
            writing.result()

    def test_reading_what_is_not_there_says_so(self, store: Store) -> None:
        store.create("folder/object", b"")
        for path in ("object", "folder", "folder/other", "other/object", "folder/object/below"):
            with pytest.raises(NotFoundError):
                store.read(path)

    def test_only_objects_exist_folders_do_not(self, store: Store) -> None:
        store.create("folder/object", b"")
        assert store.exists("folder/object")
        assert not store.exists("folder")
        assert not store.exists("folder/obj")

    def test_a_listing_shows_objects_and_folders_directly_below_sorted(self, store: Store) -> None:
        for path in ("b/2", "b/1", "b/c/3", "a", "bb/4"):
            store.create(path, b"x")
        assert store.list("") == ["a", "b", "bb"]
        assert store.list("b") == ["1", "2", "c"]
        assert store.list("b/") == ["1", "2", "c"]
        assert store.list("missing") == []

    def test_a_listing_shows_at_once_what_was_just_written_or_deleted(self, store: Store) -> None:
        store.create("a/1", b"")
        assert store.list("a") == ["1"]
        store.create("a/2", b"")
        assert store.list("a") == ["1", "2"]
        store.delete("a/1")
        assert store.list("a") == ["2"]

    def test_a_walk_shows_all_objects_below_by_their_path_from_the_root(self, store: Store) -> None:
        for path in ("b/2", "b/c/d/3", "a", "bb/4"):
            store.create(path, b"x")
        assert store.walk("") == ["a", "b/2", "b/c/d/3", "bb/4"]
        assert store.walk("b") == ["b/2", "b/c/d/3"]
        assert store.walk("missing") == []

    def test_deleting_what_is_not_there_is_fine(self, store: Store) -> None:
        store.delete("missing/object")
        store.delete_folder("missing")

    def test_a_folder_is_gone_with_its_last_object(self, store: Store) -> None:
        store.create("a/b/object", b"")
        store.delete("a/b/object")
        assert store.list("") == []

    def test_deleting_a_folder_takes_everything_below_it_and_nothing_else(self, store: Store) -> None:
        for path in ("a/1", "a/b/2", "aa/3"):
            store.create(path, b"")
        store.delete_folder("a")
        assert store.walk("") == ["aa/3"]

    def test_a_child_sees_the_same_objects_under_shorter_paths(self, store: Store) -> None:
        store.create("a/b/object", b"x")
        child = store.child("a/b")
        assert child.read("object") == b"x"
        child.create("c/other", b"y")
        assert store.read("a/b/c/other") == b"y"
        assert child.walk("") == ["c/other", "object"]
        assert child.url == f"{store.url}/a/b"

    def test_paths_that_leave_the_root_are_refused(self, store: Store) -> None:
        for path in OUTSIDE:
            with pytest.raises(StoreError, match="not a relative path below the root"):
                store.create(path, b"")
            with pytest.raises(StoreError, match="not a relative path below the root"):
                store.read(path)
        for folder in ("../x", "/", "/x", "a/.."):
            with pytest.raises(StoreError, match="not a relative path below the root"):
                store.list(folder)
        with pytest.raises(StoreError, match="not a relative path below the root"):
            store.delete_folder("")

    def test_the_probe_passes_and_leaves_nothing_behind(self, store: Store) -> None:
        store.create("object", b"x")
        store.probe()
        assert store.walk("") == ["object"]
        assert store.list("") == ["object"]
