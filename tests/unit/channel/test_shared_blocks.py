"""Batches in memory that slots of one host share: places, release, limits, and what is left after a death."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from collections.abc import Iterator

import pyarrow as pa
import pytest

from tidegate.channel.failures import ProtocolError
from tidegate.channel.tcp.shared_blocks import (
    MAX_BLOCKS,
    FreeRanges,
    MappedBlocks,
    Offer,
    Place,
    SharedBlocks,
)

SIZE = 2**20


@pytest.fixture
def blocks() -> Iterator[SharedBlocks]:
    made = SharedBlocks(SIZE)
    yield made
    made.close()


def data(size: int, seed: int = 0) -> bytes:
    return random.Random(seed).randbytes(size)


def stored(blocks: SharedBlocks, content: bytes) -> Place:
    place = blocks.store(pa.py_buffer(content))
    assert place is not None
    return place


def test_a_stored_batch_is_read_without_a_copy_and_released_with_its_last_reference(blocks: SharedBlocks) -> None:
    mapped = MappedBlocks(blocks.offer)
    place = stored(blocks, content := data(100_000))
    view = mapped.view(place)
    part = view.slice(10, 20)
    assert view.to_pybytes() == content
    del view
    assert part.to_pybytes() == content[10:30]
    stored(blocks, b"x")
    assert blocks.blocks_in_use == 2, "a slice refers to the block"
    del part
    stored(blocks, b"x")
    assert blocks.blocks_in_use == 2, "the first block was released"


def test_the_lowest_block_is_used_again(blocks: SharedBlocks) -> None:
    mapped = MappedBlocks(blocks.offer)
    for seed in range(200):
        place = stored(blocks, content := data(50_000, seed))
        assert place.offset <= 4_096 + 50_048
        assert mapped.view(place).to_pybytes() == content


def test_a_sender_without_memory_gets_no_place_and_gets_one_after_a_release(blocks: SharedBlocks) -> None:
    """Nothing waits for memory: such batches travel in frames."""
    mapped = MappedBlocks(blocks.offer)
    views = [mapped.view(stored(blocks, data(SIZE // 4))) for _ in range(3)]
    assert blocks.store(pa.py_buffer(data(SIZE // 2))) is None
    views.pop(1)  # released out of order
    assert mapped.view(stored(blocks, content := data(SIZE // 4, 1))).to_pybytes() == content
    assert views[0].to_pybytes() == views[1].to_pybytes() == data(SIZE // 4)


def test_the_number_of_blocks_is_limited(blocks: SharedBlocks) -> None:
    for _ in range(MAX_BLOCKS):
        stored(blocks, b"x")
    assert blocks.store(pa.py_buffer(b"x")) is None


@pytest.mark.parametrize("seed", range(20))
def test_blocks_in_use_never_overlap(seed: int) -> None:
    """Random sizes and orders of release against a plain model."""
    numbers = random.Random(seed)
    ranges, used = FreeRanges(100, 5_000), {}
    for _ in range(2_000):
        if used and numbers.random() < 0.5:
            begin = numbers.choice(list(used))
            ranges.give_back(begin, used.pop(begin))
            continue
        size = numbers.randrange(1, 900)
        begin = ranges.take(size)
        if begin is not None:
            assert begin >= 100 and begin + size <= 5_000
            assert all(begin + size <= b or b + s <= begin for b, s in used.items())
            used[begin] = size
    for begin, size in used.items():
        ranges.give_back(begin, size)
    assert ranges.take(4_900) == 100


@pytest.mark.parametrize("place", [Place(0, 0, 8), Place(0, SIZE - 4, 8), Place(MAX_BLOCKS, 5_000, 8)])
def test_a_place_outside_of_the_memory_is_refused(blocks: SharedBlocks, place: Place) -> None:
    mapped = MappedBlocks(blocks.offer)
    with pytest.raises(ProtocolError, match="outside of their shared memory"):
        mapped.view(place)


def test_memory_of_another_process_is_not_mapped(blocks: SharedBlocks) -> None:
    """A process of another host or container may have the same number, and any file under the descriptor."""
    with pytest.raises(OSError, match="another run"):
        MappedBlocks(blocks.offer._replace(nonce=b"0" * 16))
    with pytest.raises(OSError, match="bytes instead of"):
        MappedBlocks(blocks.offer._replace(size_bytes=4_096))
    with pytest.raises(FileNotFoundError):
        MappedBlocks(blocks.offer._replace(pid=2**22 - 1))
    reader, writer = os.pipe()
    with pytest.raises(OSError, match="not a memory file"):
        MappedBlocks(blocks.offer._replace(descriptor=reader))
    os.close(reader)
    os.close(writer)


def test_a_receiver_keeps_its_views_after_the_sender_has_closed() -> None:
    blocks = SharedBlocks(SIZE)
    mapped = MappedBlocks(blocks.offer)
    view = mapped.view(stored(blocks, content := data(1_000)))
    blocks.close()
    del blocks, mapped
    assert view.to_pybytes() == content


def test_a_forked_process_releases_nothing(blocks: SharedBlocks) -> None:
    """User code may fork in a slot; the child drops its references when it ends."""
    mapped = MappedBlocks(blocks.offer)
    view = mapped.view(stored(blocks, content := data(1_000)))
    child = os.fork()
    if not child:
        del view
        os._exit(0)
    os.waitpid(child, 0)
    stored(blocks, b"y" * 1_000)
    assert view.to_pybytes() == content


CHILD = """
import sys
import pyarrow as pa
from tidegate.channel.tcp.shared_blocks import SharedBlocks
blocks = SharedBlocks(2**20)
blocks.store(pa.py_buffer(b"left behind"))
print(*blocks.offer[:3], blocks.offer.nonce.hex(), flush=True)
sys.stdin.read()
"""


def shared_memory_files() -> set[str]:
    return set(os.listdir("/dev/shm")) if os.path.isdir("/dev/shm") else set()


def test_nothing_is_left_of_a_sender_that_was_killed() -> None:
    """The memory has no name, and is freed with the last process that uses it."""
    before = shared_memory_files()
    child = subprocess.Popen([sys.executable, "-c", CHILD], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    pid, descriptor, size, nonce = child.stdout.readline().split()
    offer = Offer(int(pid), int(descriptor), int(size), bytes.fromhex(nonce))
    mapped = MappedBlocks(offer)
    assert os.path.exists(f"/proc/{offer.pid}/fd/{offer.descriptor}")
    child.send_signal(signal.SIGKILL)
    child.communicate()
    view = mapped.view(Place(0, 4_096, 11))
    assert view.to_pybytes() == b"left behind", "a receiver may still read what it has mapped"
    with pytest.raises(FileNotFoundError):
        MappedBlocks(offer)
    assert {name for name in shared_memory_files() - before if "tidegate" in name} == set()
