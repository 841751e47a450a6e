"""`python -m simulator`: run seeds, or replay one."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from simulator.campaign import campaign
from simulator.replay import replay


def main(arguments: list[str] | None = None) -> int:
    """Exit code 1 when a checker found something."""
    parser = argparse.ArgumentParser(prog="python -m simulator", description=__doc__)
    parser.add_argument("--seeds", type=int, default=200, help="how many (default 200)")
    parser.add_argument("--first", type=int, default=0, help="the first one (default 0)")
    parser.add_argument("--seed", type=int, help="replay this one, and show what happened")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1, help="processes (default: one a core)")
    parser.add_argument("--resume", type=Path, help="file of finished pieces, to go on with a long campaign")
    options = parser.parse_args(arguments)
    if options.seed is not None:
        return replay(options.seed)
    tell = lambda text: print(text, flush=True)  # noqa: E731
    summary, wall_s = campaign(options.first, options.seeds, workers=options.workers, resume=options.resume, tell=tell)
    for line in summary.lines(wall_s):
        print(line)
    return 1 if summary.violations else 0


if __name__ == "__main__":
    sys.exit(main())
