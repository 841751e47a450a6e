"""Many seeds on all cores, resumable, and the sum of what they did."""

from __future__ import annotations

import contextlib
import gc
import json
import logging
import os
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, field
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from simulator.world import Report, simulate

CHUNK = 25
"""Seeds in one piece of work: the unit that a resumed campaign does not repeat."""


@dataclass
class Summary:
    """What a campaign, or a piece of it, did.

    Attributes:
        seeds: run.
        cpu_s: process time of the workers, seconds.
        operators: nodes of all graphs.
        recovered: seeds in which a checkpoint completed after a fault.
        violations: (seed, what), first of each seed.
    """

    seeds: int = 0
    cpu_s: float = 0.0
    operators: int = 0
    recovered: int = 0
    faults: Counter[str] = field(default_factory=Counter)
    events: Counter[str] = field(default_factory=Counter)
    evaluated: Counter[str] = field(default_factory=Counter)
    violations: list[tuple[int, str]] = field(default_factory=list)

    def add(self, report: Report) -> None:
        """One seed."""
        self.seeds += 1
        self.operators += report.operators
        self.recovered += report.recovered
        self.faults.update(report.faults)
        self.events.update(report.events)
        self.evaluated.update(report.evaluated)
        if report.violations:
            self.violations.append((report.seed, report.violations[0]))

    def merge(self, other: Summary) -> None:
        """Another piece."""
        self.seeds += other.seeds
        self.cpu_s += other.cpu_s
        self.operators += other.operators
        self.recovered += other.recovered
        self.faults.update(other.faults)
        self.events.update(other.events)
        self.evaluated.update(other.evaluated)
        self.violations += other.violations

    def to_json(self) -> dict[str, Any]:
        """For the file of a resumable campaign."""
        return {**vars(self)}

    @classmethod
    def from_json(cls, document: dict[str, Any]) -> Summary:
        """Inverse of `to_json`."""
        counters: dict[str, Any] = {name: Counter(document[name]) for name in ("faults", "events", "evaluated")}
        violations = [(seed, what) for seed, what in document["violations"]]
        return cls(**{**document, **counters, "violations": violations})

    def lines(self, wall_s: float) -> Iterator[str]:
        """The report; the last line is the verdict."""
        mean = max(self.seeds, 1)
        faults = sum(self.faults.values())
        yield f"graphs: {self.operators / mean:.1f} operators on average"
        yield f"faults by kind: {_listed(self.faults)}"
        yield f"checkers evaluated: {_listed(self.evaluated)}"
        crashes = self.faults["driver_crash"] + self.faults["slot_crash"]
        zombies = self.events["zombie drivers"] + self.faults["link_lost"]
        yield (
            f"{crashes} crashes, {zombies} zombies, {self.events['restores']} restores, "
            f"{self.events['rescales']} rescales, {self.events['savepoints']} savepoints, "
            f"{self.events['stops'] + self.events['drains']} stops, {self.events['runs']} runs; "
            f"{100 * self.recovered / mean:.0f} % of the seeds completed a checkpoint after a fault"
        )
        per_core = self.seeds / max(self.cpu_s, 1e-9)
        yield f"{self.seeds / max(wall_s, 1e-9):.1f} seeds/s, {per_core:.1f} a second and core"
        for seed, what in sorted(self.violations)[:20]:
            yield f"FAILED seed {seed}: {what[:600]} -- replay: make sim SEED={seed}"
        yield f"sim: {self.seeds} seeds, {faults} faults, {len(self.violations)} violations"


@contextlib.contextmanager
def silence() -> Iterator[None]:
    """Nothing is printed, and nothing logged: the traceback of a log record keeps the whole world in memory."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere), contextlib.redirect_stderr(nowhere):
            yield
    finally:
        logging.disable(before)


def run_chunk(first: int, count: int) -> Summary:
    """Seeds `first` to `first + count - 1`, without a word."""
    summary = Summary()
    began_s = time.process_time()
    with silence():
        for seed in range(first, first + count):
            summary.add(simulate(seed))
    summary.cpu_s = time.process_time() - began_s
    return summary


def campaign(
    first: int, seeds: int, *, workers: int, resume: Path | None, tell: Callable[[str], None]
) -> tuple[Summary, float]:
    """Run `seeds` seeds from `first` on.

    Args:
        workers: processes.
        resume: file that holds finished pieces; those are not run again, new ones are added.
        tell: told of progress now and then.

    Returns:
        The sum, and the seconds that the pieces run now took.
    """
    total = Summary()
    done = _finished(resume) if resume is not None else {}
    pieces = [(at, min(CHUNK, first + seeds - at)) for at in range(first, first + seeds, CHUNK)]
    for piece in pieces:
        if piece in done:
            total.merge(done[piece])
    began_s = told_s = time.monotonic()
    ran = 0
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn"), initializer=_settle) as pool:
        waiting = {pool.submit(run_chunk, *piece): piece for piece in pieces if piece not in done}
        for future in as_completed(waiting):
            summary = future.result()
            total.merge(summary)
            ran += summary.seeds
            if resume is not None:
                with resume.open("a") as file:
                    file.write(json.dumps({"piece": waiting[future], "summary": summary.to_json()}) + "\n")
            if time.monotonic() - told_s > 30:
                told_s = time.monotonic()
                tell(f"{total.seeds} of {seeds} seeds, {len(total.violations)} violations")
    return total, (time.monotonic() - began_s) * total.seeds / max(ran, 1)


def _settle() -> None:
    """A simulation makes much garbage that holds no cycles."""
    gc.freeze()
    gc.set_threshold(50_000, 20, 100)


def _finished(path: Path) -> dict[tuple[int, int], Summary]:
    if not path.exists():
        return {}
    documents = [json.loads(line) for line in path.read_text().splitlines()]
    return {(d["piece"][0], d["piece"][1]): Summary.from_json(d["summary"]) for d in documents}


def _listed(counter: Counter[str]) -> str:
    return ", ".join(f"{name} {count}" for name, count in sorted(counter.items()))
