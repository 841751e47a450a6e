"""The suite for sources that discover splits: a right source passes, and each defect is found (S4.3)."""

from __future__ import annotations

from typing import Any

import pytest
from builders.growing_source import Growing, Shelf, ShelfEnumerator

from tidegate.connectors.interface import Discovery, Source, SplitEnumerator
from tidegate.testing import DiscoveringSourceConformance


class TestGrowing(DiscoveringSourceConformance):
    def setup_method(self) -> None:
        self.shelf = Shelf({"a": 7, "b": 3, "c": 5})

    def make_source(self) -> Source:
        return Growing(self.shelf, boundedness="unbounded")

    def add_input(self) -> None:
        self.shelf.rows[f"more{len(self.shelf.rows)}"] = 4


class Forgetful(ShelfEnumerator):
    """Finds everything with each search."""

    def discover(self) -> Discovery:
        self._found = 0
        return super().discover()


class Stateless(ShelfEnumerator):
    """Its state does not say what it has found."""

    def discover(self) -> Discovery:
        found = super().discover()
        return Discovery(found.splits, 0, found.complete)


@pytest.mark.parametrize(
    ("enumerator", "test"),
    [
        (Forgetful, "test_a_search_finds_each_split_once"),
        (Stateless, "test_an_enumerator_with_a_restored_state_finds_only_later_splits"),
    ],
)
def test_a_defect_of_an_enumerator_is_found(enumerator: Any, test: str) -> None:
    class Broken(Growing):
        def create_enumerator(self, state: Any) -> SplitEnumerator:
            made: SplitEnumerator = enumerator(self.shelf, state or 0)
            return made

    class Suite(TestGrowing):
        __test__ = False

        def make_source(self) -> Source:
            return Broken(self.shelf, boundedness="unbounded")

    suite = Suite()
    suite.setup_method()
    with pytest.raises(AssertionError):
        getattr(suite, test)()
