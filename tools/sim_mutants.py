"""`make sim-mutants`: break the protocol on purpose, in one place at a time, and check that a test notices it.

Each mutant replaces one piece of the runtime's source, in a process of its own. A mutant that neither violates a
checker of the simulator within its seeds nor fails its unit tests survives. Then a test is missing, and the tool fails.
"""

from __future__ import annotations

import argparse
import importlib.abc
import importlib.machinery
import importlib.util
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType

sys.path.insert(0, str(Path(__file__).parent))

from protocol_mutants import MUTANTS, Mutant

REPOSITORY = Path(__file__).parents[1]
SEEDS = 120
"""Number of seeds that a mutant must survive before its unit tests run."""
TIMEOUT_S = 300.0
"""Time limit of a mutant, seconds; a mutant that hangs is killed, and counts as noticed."""


class _Patch(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Loads one module with a piece of its source replaced."""

    def __init__(self, mutant: Mutant) -> None:
        self._mutant = mutant

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """Return a spec for the mutant's module only."""
        if fullname != self._mutant.module:
            return None
        return importlib.util.spec_from_loader(fullname, self, origin=str(source_of(self._mutant)))

    def exec_module(self, module: ModuleType) -> None:
        """Execute the changed source."""
        path = source_of(self._mutant)
        module.__file__ = str(path)
        exec(compile(mutated(self._mutant), str(path), "exec"), module.__dict__)


def source_of(mutant: Mutant) -> Path:
    """Return the file of the mutant's module."""
    return REPOSITORY / "spark_runtime" / Path(*mutant.module.split(".")).with_suffix(".py")


def mutated(mutant: Mutant) -> str:
    """Return the changed source of the module. Raises SystemExit unless the piece occurs exactly once."""
    text = source_of(mutant).read_text(encoding="utf-8")
    if text.count(mutant.before) != 1:
        raise SystemExit(
            f"mutant {mutant.name!r}: its text occurs {text.count(mutant.before)} times in {mutant.module}"
        )
    return text.replace(mutant.before, mutant.after)


def live(mutant: Mutant, seeds: int) -> str | None:
    """Return what killed the mutant; None: nothing did. Called in a process of its own."""
    sys.meta_path.insert(0, _Patch(mutant))
    if mutant.simulated:
        from simulator.campaign import run_chunk

        for seed in range(seeds):
            found = run_chunk(seed, 1).violations
            if found:
                return f"seed {seed}: {found[0][1]}"
    if mutant.tests:
        import pytest

        paths = [str(REPOSITORY / "tests" / path) for path in mutant.tests]
        if pytest.main(["-q", "-x", "-p", "no:cacheprovider", "--no-header", "--tb=no", *paths]) == 1:
            return f"unit tests {', '.join(mutant.tests)}"
    return None


def judge(mutant: Mutant, seeds: int) -> tuple[Mutant, str | None, float]:
    """Run `live` in a child process."""
    began_s = time.monotonic()
    command = [sys.executable, __file__, "--live", mutant.name, "--seeds", str(seeds)]
    support = os.pathsep.join(filter(None, (str(REPOSITORY / "tests" / "support"), os.environ.get("PYTHONPATH"))))
    environment = {**os.environ, "PYTHONHASHSEED": "0", "PYTHONPATH": support}
    try:
        child = subprocess.run(
            command, capture_output=True, text=True, timeout=TIMEOUT_S, env=environment, check=False, cwd=REPOSITORY
        )
    except subprocess.TimeoutExpired:
        return mutant, f"it hung for {TIMEOUT_S:.0f} s", time.monotonic() - began_s
    lines = [line for line in child.stdout.splitlines() if line.startswith("KILLED ")]
    if child.returncode not in (0, 3) or (child.returncode == 0) != bool(lines):
        raise SystemExit(f"mutant {mutant.name!r} could not run:\n{child.stdout[-2000:]}{child.stderr[-3000:]}")
    return mutant, lines[0].removeprefix("KILLED ") if lines else None, time.monotonic() - began_s


def main() -> int:
    """Run the mutants; return 1 if one survives."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=SEEDS)
    parser.add_argument("--only", help="part of a name")
    parser.add_argument("--live", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.live:
        killer = live(next(m for m in MUTANTS if m.name == options.live), options.seeds)
        if killer is not None:
            print(f"KILLED {killer.splitlines()[0]}", flush=True)
        return 0 if killer is not None else 3
    chosen = [m for m in MUTANTS if not options.only or options.only in m.name]
    for mutant in chosen:
        mutated(mutant)
    survivors: list[str] = []
    with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        for mutant, killer, took_s in pool.map(lambda m: judge(m, options.seeds), chosen):
            verdict = f"killed by {killer[:150]}" if killer else "SURVIVED"
            print(f"{mutant.name} ({mutant.rule}): {verdict} [{took_s:.0f} s]", flush=True)
            if killer is None:
                survivors.append(mutant.name)
    print(f"mutants: {len(chosen) - len(survivors)} killed, {len(survivors)} survived")
    return 1 if survivors else 0


if __name__ == "__main__":
    sys.exit(main())
