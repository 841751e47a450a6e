"""Paths and ids."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.errors import OptionError
from tidegate.jobs.layout import JobLayout, check_command_id, stable_id
from tidegate.jobs.stores.store import check_path

LAYOUT = JobLayout("flights")


@pytest.mark.parametrize(
    "job_id", ["../x", "a/b", "", ".", "..", "a..b", "-a", "_a", ".a", "a b", "a\n", "é", "a" * 129]
)
def test_a_bad_job_id_is_refused_with_what_is_allowed(job_id: str) -> None:
    with pytest.raises(OptionError, match="is not a valid job id.*letters, digits"):
        JobLayout(job_id)


@pytest.mark.parametrize("job_id", ["a", "A9", "flight-delays_2013.v2", "a" * 128])
def test_a_plain_folder_name_is_a_job_id(job_id: str) -> None:
    assert JobLayout(job_id).job == job_id


def test_the_paths_are_those_of_the_specification() -> None:
    sha256 = "0" * 64
    assert LAYOUT.spec(1) == "flights/specs/000001.json"
    assert LAYOUT.launch(1, 2) == "flights/launches/000001-2.json"
    assert LAYOUT.launched_process(1, 2) == "flights/launches/000001-2.pid.json"
    assert LAYOUT.launch_log(1, 2) == "flights/logs/launch-000001-2.log"
    assert LAYOUT.desired == "flights/desired.json"
    assert LAYOUT.owner == "flights/owner.json"
    assert LAYOUT.decision(42) == "flights/decisions/00000042.json"
    assert LAYOUT.decision_snapshot(256) == "flights/decisions/_snapshot-00000256.json"
    assert LAYOUT.status(3) == "flights/status/3.json"
    assert LAYOUT.bell == "flights/commands/_bell"
    assert LAYOUT.command("c1") == "flights/commands/c1.json"
    assert LAYOUT.result("c1") == "flights/commands/c1.result.json"
    assert LAYOUT.withdrawn("c1") == "flights/commands/c1.withdrawn.json"
    assert LAYOUT.checkpoint(12, 3) == "flights/checkpoints/chk-12-g3"
    assert LAYOUT.metadata(LAYOUT.checkpoint(12, 3)) == "flights/checkpoints/chk-12-g3/_metadata"
    assert LAYOUT.logs(3) == "flights/logs/3"
    assert LAYOUT.artifact(sha256) == f"flights/artifacts/{sha256}"
    assert LAYOUT.shared == "flights/shared"
    assert LAYOUT.savepoints == "flights/savepoints"
    assert LAYOUT.quarantine == "flights/quarantine"
    assert LAYOUT.materialised(1) == "flights/materialised/000001"


def test_an_artifact_that_is_no_hash_is_refused() -> None:
    with pytest.raises(OptionError, match="is not the SHA-256 of pinned code"):
        LAYOUT.artifact("../../etc")


def test_listings_give_numbers_back_in_numeric_order_and_skip_other_names() -> None:
    assert LAYOUT.decision_numbers(["00000002.json", "100000000.json", "99999999.json", "_snapshot-00000256.json"]) == [
        2,
        99999999,
        100000000,
    ]
    assert LAYOUT.decision_snapshot_numbers(["00000002.json", "_snapshot-00000256.json"]) == [256]
    assert LAYOUT.spec_numbers(["000002.json", "000001.json", "x.json"]) == [1, 2]
    assert LAYOUT.launch_numbers(["000001-10.json", "000001-9.json", "000001-9.pid.json"]) == [(1, 9), (1, 10)]


def test_commands_without_answer_and_withdrawal_are_open() -> None:
    names = ["_bell", "a.json", "a.result.json", "b.json", "c.json", "c.withdrawn.json", "d.e.json"]
    assert LAYOUT.unanswered(names) == ["b", "d.e"]


@pytest.mark.parametrize("command_id", ["../x", "a/b", "", "x.result", "x.withdrawn", "_bell", "a" * 193])
def test_a_command_id_that_would_name_another_file_is_refused(command_id: str) -> None:
    with pytest.raises(OptionError, match="is not a valid command id"):
        check_command_id(command_id)


@given(st.lists(st.one_of(st.text(), st.integers()), max_size=6))
def test_a_stable_id_is_a_valid_command_id_whatever_it_is_made_of(parts: list[object]) -> None:
    made = stable_id(*parts)
    assert made == stable_id(*parts)
    assert check_command_id(made) == made
    assert check_path(LAYOUT.command(made))


def test_stable_ids_tell_parts_apart_that_read_alike() -> None:
    ids = {stable_id(*parts) for parts in (("a", "b"), ("ab",), ("a-b",), ("a", "b", ""), ("", "a", "b"), ("a\x00b",))}
    assert len(ids) == 6
