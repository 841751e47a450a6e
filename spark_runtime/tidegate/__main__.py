"""`python -m tidegate` is the command `tidegate`, for environments whose scripts are not on PATH."""

from __future__ import annotations

import sys

from tidegate.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
