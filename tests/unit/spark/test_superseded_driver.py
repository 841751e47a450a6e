"""A driver whose launch was superseded ends itself."""

from __future__ import annotations

from pathlib import Path

import pytest

from tidegate.errors import FencedError
from tidegate.jobs.client.job_client import JobClient
from tidegate.jobs.launches import record_launch
from tidegate.spark.driver import Driver, main

EXIT_FENCED = 13


pytestmark = pytest.mark.usefixtures("own_signal_handlers")


def submitted(tmp_path: Path) -> JobClient:
    (tmp_path / "flights.py").write_text("def build(args): raise AssertionError('it was not to be built')\n")
    client = JobClient(str(tmp_path / "jobs"), "flights")
    client.submit(pipeline=f"{tmp_path / 'flights.py'}:build")
    return client


def test_a_driver_ends_without_a_word_when_a_newer_launch_was_recorded_before_it_began(tmp_path: Path) -> None:
    """S9.2: it was given up. Not even a fence, which would end the generation_log of the driver that is to be."""
    client = submitted(tmp_path)
    for _ in range(2):
        record_launch(client.store, client.layout, client.spec(1).number, launcher="local")
    words = ["--root", client.root, "--job", "flights", "--spec", "1", "--launch", "1"]
    assert main(words) == EXIT_FENCED
    assert client.decisions() == ()


def test_a_driver_that_comes_out_of_its_queue_after_a_newer_submission_does_not_begin(tmp_path: Path) -> None:
    """S9.2: what it would commit until that is launched, a fresh start would write once more."""
    client = submitted(tmp_path)
    record_launch(client.store, client.layout, client.spec(1).number, launcher="yarn", host="yarn")
    client.submit(pipeline=f"{tmp_path / 'flights.py'}:build")
    words = ["--root", client.root, "--job", "flights", "--spec", "1", "--launch", "1"]
    assert main(words) == EXIT_FENCED
    assert client.decisions() == ()


def test_a_driver_that_comes_after_a_newer_ones_fence_does_not_begin(tmp_path: Path) -> None:
    """S9.2: also when nobody recorded the newer launch here."""
    client = submitted(tmp_path)
    client.log.begin_generation(spec=1, launch=2)
    with pytest.raises(FencedError, match="launch 1 of submission 1 was replaced"):
        Driver(client.root, "flights", spec_number=1, launch=1, storage_options={}).run()
    assert len(client.decisions()) == 1
