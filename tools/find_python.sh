#!/usr/bin/env bash
# Prints the path of a Python 3.11-3.14 that can make virtual environments. Without one it prints one line that says
# what to install, and ends with 1. Each candidate is run, because a name on PATH need not work (version shims).
set -euo pipefail

suitable='import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 14))'
incomplete=""

for candidate in ${PYTHON:-python3 python3.13 python3.12 python3.11 python3.14}; do
    "$candidate" -c "$suitable" >/dev/null 2>&1 || continue
    if "$candidate" -c 'import ensurepip, venv' >/dev/null 2>&1; then
        "$candidate" -c 'import sys; print(sys.executable)'
        exit 0
    fi
    incomplete="$candidate"
done

if [ -n "$incomplete" ]; then
    echo "tidegate: $incomplete cannot make virtual environments; install ${incomplete##*/}-venv, for example: apt-get install ${incomplete##*/}-venv" >&2
elif [ -n "${PYTHON:-}" ]; then
    echo "tidegate: PYTHON=$PYTHON is not a working Python 3.11-3.14; name one, or install it, for example: apt-get install python3 python3-venv" >&2
else
    echo "tidegate: no Python 3.11-3.14 was found; install one, for example: apt-get install python3 python3-venv" >&2
fi
exit 1
