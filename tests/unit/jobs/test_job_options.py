"""JobOptions: what is allowed, what is refused, and that nothing is lost on the way through JSON."""

from __future__ import annotations

import dataclasses
import json
from datetime import timedelta
from typing import Any

import pytest

from tidegate.errors import OptionError
from tidegate.jobs.options import JobOptions


def test_the_defaults_are_those_of_the_rules() -> None:
    """S1.1, S1.2, S1.4, S2.2, S2.3, S5.1, S5.4."""
    options = JobOptions()
    assert options.checkpoint_interval is None and options.restart_attempts is None
    assert options.left_open == {"checkpoint_interval", "restart_attempts"}
    assert options.tolerable_checkpoint_failures == 3
    assert options.checkpoint_timeout == timedelta(minutes=10)
    assert (options.max_concurrent_checkpoints, options.retained_checkpoints) == (1, 1)
    assert (options.parallelism, options.max_parallelism) == (1, 128)
    assert options.state_size_threshold_bytes == 20 * 1024
    assert options.slot_memory_bytes == 2**30
    assert (options.state_backend, options.state_memory_bytes) == ("heap", 2**28)
    assert JobOptions(state_backend="memory").state_size_threshold_bytes == 6 * 2**20
    assert JobOptions(state_memory="100 MiB").state_memory_bytes == 100 * 2**20
    assert options.channel_capacity_bytes == 4 * 2**20
    assert options.slots_timeout == timedelta(minutes=10)


def test_options_survive_json_and_back() -> None:
    options = JobOptions(
        parallelism=3,
        checkpoint_interval="1 s 500 ms",
        slot_memory="1.5 GiB",
        idle_after=timedelta(minutes=2),
        checkpoint_mode="at_least_once",
        savepoint_directory="s3://b/sp",
        state_backend="rocksdb",
        state_memory="64 MiB",
    )
    assert JobOptions.from_mapping(json.loads(json.dumps(options.to_mapping()))) == options
    assert set(options.to_mapping()) == {field.name for field in dataclasses.fields(JobOptions)}


def test_texts_from_a_command_line_are_accepted() -> None:
    texts = {
        "parallelism": "4",
        "checkpoint_interval": "none",
        "restart_delay": "0 s",
        "restart_strategy": "fixed_delay",
    }
    options = JobOptions.from_mapping(texts)
    assert options == JobOptions(
        parallelism=4, checkpoint_interval=None, restart_delay=timedelta(0), restart_strategy="fixed_delay"
    )


@pytest.mark.parametrize(
    ("given", "interval", "is_open"),
    [
        ({}, None, True),
        ({"checkpoint_interval": "auto"}, None, True),
        ({"checkpoint_interval": "off"}, None, False),
        ({"checkpoint_interval": "none"}, None, False),
        ({"checkpoint_interval": None}, None, False),
        ({"checkpoint_interval": "10 s"}, timedelta(seconds=10), False),
    ],
)
def test_an_interval_that_is_left_open_is_told_from_one_that_is_off(
    given: dict[str, Any], interval: timedelta | None, is_open: bool
) -> None:
    """S1.1: also by a submission, whose record has every option; earlier versions wrote null, which is off."""
    options = JobOptions.from_mapping(given)
    again = JobOptions.from_mapping(json.loads(json.dumps(options.to_mapping())))
    for one in (options, again):
        assert (one.checkpoint_interval, "checkpoint_interval" in one.left_open) == (interval, is_open)


@pytest.mark.parametrize(
    ("given", "attempts"),
    [
        ({}, None),
        ({"restart_strategy": "fixed_delay"}, 3),
        ({"restart_strategy": "failure_rate"}, 3),
        ({"execution_mode": "batch"}, 3),
        ({"restart_attempts": 1}, 1),
        ({"restart_strategy": "fixed_delay", "restart_attempts": "none"}, None),
    ],
)
def test_attempts_that_are_left_open_go_by_the_strategy(given: dict[str, Any], attempts: int | None) -> None:
    """S9.1: a batch job repeats all its work with each of them."""
    options = JobOptions.from_mapping(given)
    assert options.restart_attempts == attempts
    assert JobOptions.from_mapping(options.to_mapping()).restart_attempts == attempts


@pytest.mark.parametrize(
    ("submitted", "changed", "attempts"),
    [
        ({}, {"restart_strategy": "fixed_delay"}, 3),
        ({}, {"restart_strategy": "failure_rate"}, 3),
        ({}, {"execution_mode": "batch"}, 3),
        ({"restart_strategy": "fixed_delay"}, {"restart_strategy": "exponential_delay"}, None),
        ({"execution_mode": "batch"}, {"execution_mode": "streaming"}, None),
        ({"restart_attempts": "none"}, {"restart_strategy": "fixed_delay"}, None),
        ({"restart_attempts": 7}, {"restart_strategy": "fixed_delay"}, 7),
        ({}, {"restart_delay": "5 s"}, None),
    ],
)
def test_attempts_that_are_left_open_follow_what_a_restore_changes(
    submitted: dict[str, Any], changed: dict[str, Any], attempts: int | None
) -> None:
    """S9.1: a restore lays its options over the record of the submission before, which keeps what users named apart
    from what was derived."""
    record = json.loads(json.dumps(JobOptions.from_mapping(submitted).to_mapping()))
    assert JobOptions.from_mapping({**record, **changed}).restart_attempts == attempts


@pytest.mark.parametrize(
    ("name", "nearest"),
    [
        ("paralelism", "parallelism"),
        ("checkpoint_intervall", "checkpoint_interval"),
        ("retained", "retained_checkpoints"),
    ],
)
def test_a_wrong_name_is_refused_with_the_nearest_right_one(name: str, nearest: str) -> None:
    with pytest.raises(OptionError, match=f"there is no job option '{name}'.*Did you mean '{nearest}'"):
        JobOptions.from_mapping({name: 1})


def test_a_name_like_no_other_is_refused_with_the_list() -> None:
    with pytest.raises(OptionError, match="The options are: parallelism, max_parallelism"):
        JobOptions.from_mapping({"zzz": 1})


@pytest.mark.parametrize(
    ("name", "value", "allowed"),
    [
        ("parallelism", 0, "from 1 to"),
        ("parallelism", "two", "whole number"),
        ("parallelism", True, "whole number"),
        ("parallelism", 1.5, "whole number"),
        ("checkpoint_interval", 10, "duration with its unit"),
        ("checkpoint_interval", "0 s", "at least 1 ms, or off"),
        ("checkpoint_timeout", "0 s", "at least 1 ms"),
        ("slot_memory", 2**30, "size with its unit"),
        ("slot_memory", "1 MiB", "at least 128 MiB"),
        ("state_backend", "rocks_db", "did you mean 'rocksdb'"),
        ("state_memory", "1 KiB", "at least 16 MiB, or none"),
        ("checkpoint_mode", "exactly_onec", "did you mean 'exactly_once'"),
        ("retention", "drop", "'keep' or 'delete'"),
        ("retention", None, "'keep' or 'delete'"),
        ("savepoint_directory", "", "leave it out"),
        ("unaligned_checkpoints", "yes", "true or false"),
        ("unaligned_checkpoints", 1, "true or false"),
    ],
)
def test_a_wrong_value_is_refused_with_option_and_what_is_allowed(name: str, value: object, allowed: str) -> None:
    with pytest.raises(OptionError, match=allowed) as refusal:
        JobOptions.from_mapping({name: value})
    assert name in refusal.value.where


def test_options_that_contradict_each_other_are_refused() -> None:
    with pytest.raises(OptionError, match="more than max_parallelism"):
        JobOptions(parallelism=129)
    with pytest.raises(OptionError, match="state_memory 2 GiB is not less than slot_memory 1 GiB"):
        JobOptions(state_memory="2 GiB")
    with pytest.raises(OptionError, match="longer than heartbeat_interval"):
        JobOptions(heartbeat_interval="30 s")
    with pytest.raises(OptionError, match="only exactly_once holds channels back"):
        JobOptions(unaligned_checkpoints=True, checkpoint_mode="at_least_once")
    with pytest.raises(OptionError, match="only exactly_once holds channels back"):
        JobOptions(unaligned_checkpoints=True, checkpoint_mode="off")
    with pytest.raises(OptionError, match="waits for the approval of checkpoints.*Leave commit at its default"):
        JobOptions(commit="on_request", checkpoint_mode="off")
    with pytest.raises(OptionError, match="checkpoint_mode is 'off'.*checkpoint_interval=none"):
        JobOptions(checkpoint_interval="1 s", checkpoint_mode="off")
    with pytest.raises(OptionError, match="unaligned_checkpoints is off"):
        JobOptions(aligned_checkpoint_timeout="1 s")


def test_unaligned_checkpoints_overtake_at_once_or_after_the_timeout() -> None:
    """S3.7."""
    assert JobOptions().unaligned_after_ms is None
    assert JobOptions.from_mapping({"unaligned_checkpoints": "true"}).unaligned_after_ms == 0
    timed = JobOptions(unaligned_checkpoints=True, aligned_checkpoint_timeout="2 s")
    assert timed.unaligned_after_ms == 2_000
    assert JobOptions.from_mapping(timed.to_mapping()) == timed


def test_options_are_frozen_and_can_be_replaced() -> None:
    options = JobOptions(slot_memory="2 GiB")
    with pytest.raises(dataclasses.FrozenInstanceError):
        options.parallelism = 2  # type: ignore[misc]
    assert dataclasses.replace(options, parallelism=2) == JobOptions(slot_memory="2 GiB", parallelism=2)
    assert hash(options) == hash(JobOptions(slot_memory="2 GiB"))


def test_every_option_is_documented() -> None:
    documented = JobOptions.__doc__ or ""
    assert all(f"        {field.name}: " in documented for field in dataclasses.fields(JobOptions))


def test_the_time_for_a_store_outage_is_two_minutes_and_needs_a_unit() -> None:
    """S9.2."""
    assert JobOptions().store_timeout == timedelta(minutes=2)
    assert JobOptions.from_mapping({"store_timeout": "45 s"}).store_timeout == timedelta(seconds=45)
    with pytest.raises(OptionError, match="store_timeout"):
        JobOptions.from_mapping({"store_timeout": 45})
