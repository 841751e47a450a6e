"""The benchmarks' folders are no packages: make their modules importable."""

from __future__ import annotations

import sys
from pathlib import Path

BENCHMARKS = Path(__file__).parents[3] / "benchmarks"
sys.path[:0] = [str(BENCHMARKS), str(BENCHMARKS / "endings")]
