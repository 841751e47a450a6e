"""Puts one checkout's runtime on the path of this process and of its children: this one, or that of BENCH_REPOSITORY.

Import it before tidegate.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
REPOSITORY = Path(os.environ.get("BENCH_REPOSITORY") or HERE.parent)
_RUNTIME = str(REPOSITORY / "spark_runtime")

sys.path[:0] = [str(HERE), _RUNTIME]
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [_RUNTIME, os.environ.get("PYTHONPATH")]))
