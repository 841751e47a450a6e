"""Files of all sinks are ended on one thread of the process."""

from __future__ import annotations

import multiprocessing
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from tidegate.connectors.files.sink.encoded_file import begin_on_encoder_thread


def test_whoever_asks_the_work_is_done_on_one_and_the_same_thread() -> None:
    found: list[str] = []

    def work() -> None:
        found.append(threading.current_thread().name)

    with ThreadPoolExecutor(4) as writers:
        list(writers.map(lambda _: begin_on_encoder_thread(work).result(), range(8)))
    assert len(found) == 8 and len(set(found)) == 1 and found[0] != threading.current_thread().name


def test_what_the_work_raises_comes_to_whoever_asked() -> None:
    def fail() -> None:
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        begin_on_encoder_thread(fail).result()


def test_a_forked_process_has_a_thread_of_its_own() -> None:
    begin_on_encoder_thread(lambda: None).result()
    child = multiprocessing.get_context("fork").Process(target=_do_something_there)
    child.start()
    child.join(20)
    code, _ = child.exitcode, child.kill()
    assert code == 0


def _do_something_there() -> None:
    begin_on_encoder_thread(lambda: None).result(10)
