"""S2.3: folders go late, by the current generation alone, and not when a newer submission starts from them."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from tidegate.errors import FencedError, StoreError, UnclearAnswerError
from tidegate.jobs.stores.in_memory import MemoryStore
from tidegate.spark.driver_loop import checkpoint_deletion as retiring_module
from tidegate.spark.driver_loop.checkpoint_deletion import RETRY_S, CheckpointDeletion

_names = itertools.count()


class Shelf:
    """Three folders, a clock, and somebody who deletes."""

    def __init__(self) -> None:
        self.store = MemoryStore(f"retiring-{next(_names)}")
        self.now_s = 0.0
        self.over: Exception | None = None
        self.checks = 0
        for folder in ("a", "b", "c"):
            self.store.create(f"{folder}/state", b"")
            self.store.create(f"{folder}/_metadata", b"")
        self.retiring = CheckpointDeletion(self.store, self.check, grace_s=10.0, now_s=lambda: self.now_s)

    def check(self) -> None:
        self.checks += 1
        if self.over is not None:
            raise self.over

    def after(self, seconds: float) -> list[str]:
        """Folders that are left then."""
        self.now_s += seconds
        self.retiring.delete_due()
        return self.store.list("")


def test_a_folder_goes_when_its_grace_is_over_and_not_before() -> None:
    shelf = Shelf()
    shelf.retiring.add(1, "a")
    assert shelf.after(9.9) == ["a", "b", "c"]
    shelf.retiring.add(2, "b")
    assert shelf.after(0.1) == ["b", "c"]
    assert shelf.after(9.9) == ["c"]


def test_what_nobody_can_be_writing_to_any_more_goes_at_once() -> None:
    shelf = Shelf()
    shelf.retiring.add(1, "a", at_once=True)
    shelf.retiring.add(2, "b")
    assert shelf.after(0) == ["b", "c"]


@pytest.mark.parametrize("error", [FencedError("over"), UnclearAnswerError("not known")])
def test_a_driver_whose_reign_is_over_deletes_nothing_more(error: Any) -> None:
    """S9.2."""
    shelf = Shelf()
    for folder in ("a", "b", "c"):
        shelf.retiring.add(1, folder)
    shelf.over = error
    assert shelf.after(10) == ["a", "b", "c"]
    shelf.over = None
    assert shelf.after(10) == ["a", "b", "c"]
    assert shelf.checks == 1


def test_the_reign_is_checked_before_every_folder() -> None:
    """S9.2."""
    shelf = Shelf()
    delete = shelf.store.delete_folder

    def delete_and_be_fenced(path: str) -> None:
        delete(path)
        shelf.over = FencedError("over")

    shelf.store.delete_folder = delete_and_be_fenced  # type: ignore[method-assign]
    shelf.retiring.add(1, "a")
    shelf.retiring.add(2, "b")
    assert shelf.after(10) == ["b", "c"]


def test_what_a_newer_submission_starts_from_is_left() -> None:
    shelf = Shelf()
    shelf.retiring.spared = lambda: {"b"}
    for folder in ("a", "b"):
        shelf.retiring.add(1, folder)
    assert shelf.after(10) == ["b", "c"]
    shelf.retiring.spared = frozenset
    assert shelf.after(10) == ["b", "c"]


def test_what_a_submission_starts_from_that_comes_meanwhile_is_left() -> None:
    shelf = Shelf()
    answers = iter([frozenset[str](), frozenset({"b"})])
    shelf.retiring.spared = lambda: next(answers)
    for folder in ("a", "b"):
        shelf.retiring.add(1, folder)
    assert shelf.after(10) == ["b", "c"]


def test_while_newer_submissions_cannot_be_read_nothing_is_deleted() -> None:
    shelf = Shelf()

    def unreadable() -> set[str]:
        raise StoreError("connection reset")

    shelf.retiring.spared = unreadable
    shelf.retiring.add(1, "a")
    assert shelf.after(10) == ["a", "b", "c"]
    shelf.retiring.spared = frozenset
    assert shelf.after(RETRY_S) == ["b", "c"]


def test_a_store_that_does_not_tell_who_reigns_is_asked_again() -> None:
    """S9.2: until it does nothing is deleted, and nothing is forgotten."""
    shelf = Shelf()
    for folder in ("a", "b"):
        shelf.retiring.add(1, folder)
    shelf.over = StoreError("connection reset")
    assert shelf.after(10) == ["a", "b", "c"]
    shelf.over = None
    assert shelf.after(RETRY_S - 1) == ["a", "b", "c"]
    assert shelf.after(1) == ["c"]


def test_a_folder_that_cannot_be_deleted_does_not_keep_the_others() -> None:
    shelf = Shelf()
    delete = shelf.store.delete_folder

    def refuse_a(path: str) -> None:
        if path == "a":
            raise StoreError("permission denied")
        delete(path)

    shelf.store.delete_folder = refuse_a  # type: ignore[method-assign]
    for folder in ("a", "b"):
        shelf.retiring.add(1, folder)
    assert shelf.after(10) == ["a", "c"]
    shelf.store.delete_folder = delete  # type: ignore[method-assign]
    assert shelf.after(RETRY_S) == ["c"]


def test_what_has_not_come_to_its_time_is_left_to_the_next_driver() -> None:
    shelf = Shelf()
    shelf.retiring.start()
    shelf.retiring.add(1, "a")
    shelf.retiring.close()
    assert shelf.store.list("") == ["a", "b", "c"]


def test_what_is_due_and_not_deleted_is_counted_and_nothing_else() -> None:
    """S2.3: what waits for its grace, was inherited, or was refused by the store, would be waited for in vain."""
    shelf = Shelf()
    seen: list[int] = []
    delete = shelf.store.delete_folder

    def slowly(path: str) -> None:
        seen.append(shelf.retiring.overdue)
        if path == "b":
            raise StoreError("permission denied")
        delete(path)

    shelf.retiring.delete = slowly
    for folder in ("a", "b"):
        shelf.retiring.add(1, folder)
    shelf.retiring.add(1, "c", inherited=True)
    assert shelf.retiring.overdue == 0
    shelf.now_s = 10
    assert shelf.retiring.overdue == 2
    assert shelf.after(0) == ["b"] and seen == [2, 1, 0]
    shelf.now_s += RETRY_S
    assert shelf.retiring.overdue == 0


def test_of_folders_that_the_store_refuses_a_bounded_number_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retiring_module, "MAX_RETRIED", 2)
    shelf = Shelf()
    tried: list[str] = []

    def refuse(path: str) -> None:
        tried.append(path)
        raise StoreError("permission denied")

    shelf.retiring.delete = refuse
    for folder in ("a", "b", "c"):
        shelf.retiring.add(1, folder)
    shelf.after(10)
    shelf.after(RETRY_S)
    assert tried == ["a", "b", "c", "b", "c"]
