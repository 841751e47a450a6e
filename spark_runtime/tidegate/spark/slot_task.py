"""The function that Spark's tasks call. It imports the slot only in the worker, because a driver needs no kernels."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from tidegate.spark.slot_parameters import SlotParameters


def run_slot(parameters: SlotParameters, partition: Iterable[int]) -> Iterator[str]:
    """Run a slot to its end. See `slot_entry.slot_main`."""
    from tidegate.spark.slot_entry import slot_main

    return slot_main(parameters, partition)
