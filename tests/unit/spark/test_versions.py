"""Versions of driver and slots, compared before a slot builds anything."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from tidegate.channel.control.protocol import Failed
from tidegate.errors import EnvironmentProblemError
from tidegate.spark.slot_entry import SlotRuntime
from tidegate.spark.versions import check_versions, own_versions

DRIVER = {"python": "3.11", "pyarrow": "19.0", "tidegate": "0.1.0"}


def test_equal_versions_are_fine() -> None:
    check_versions(own_versions(), own_versions(), "here")
    assert own_versions()["pyarrow"] == pa.__version__
    assert set(own_versions()) == set(DRIVER)


@pytest.mark.parametrize("name", DRIVER)
def test_each_version_that_differs_is_named_with_both_sides(name: str) -> None:
    with pytest.raises(EnvironmentProblemError) as caught:
        check_versions(DRIVER, {**DRIVER, name: "9.9"}, "job j, slot 1 on node-7")
    assert caught.value.cause == f"{name} 9.9 in the slot, {DRIVER[name]} in the driver"
    assert caught.value.where == "job j, slot 1 on node-7"


def test_a_version_that_a_slot_does_not_know_of_differs() -> None:
    with pytest.raises(
        EnvironmentProblemError, match="pyarrow unknown in the slot, 19.0 in the driver, tidegate 0.2 in the slot"
    ):
        check_versions(DRIVER, {"python": "3.11", "tidegate": "0.2"}, "")


def test_a_slot_with_other_versions_tells_the_driver_and_builds_nothing() -> None:
    sent: list[dict[str, Any]] = []
    slot = object.__new__(SlotRuntime)
    slot.__dict__.update(
        _parameters=SimpleNamespace(job_id="j", versions={**own_versions(), "pyarrow": "1.0"}),
        _index=3,
        _over=threading.Event(),
        _slot=None,
        _control=SimpleNamespace(send=sent.append, flush=lambda s: None),
        _options=SimpleNamespace(heartbeat_interval=SimpleNamespace(total_seconds=lambda: 3600.0), slot_memory_bytes=0),
        _watch=lambda: None,
        _build=lambda: pytest.fail("it builds"),
    )
    with pytest.raises(EnvironmentProblemError):
        slot.run()
    assert [type(message) for message in sent] == [Failed]
    assert f"pyarrow {pa.__version__} in the slot, 1.0 in the driver" in sent[0].message
