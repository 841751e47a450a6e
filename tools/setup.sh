#!/usr/bin/env bash
# Makes .venv with exactly what requirements.lock says, and this package in editable form. Safe to repeat.
# PYTHON=<interpreter> chooses the Python; a package mirror is taken from pip's own settings.
set -euo pipefail
cd "$(dirname "$0")/.."

if ! .venv/bin/python -m pip --version >/dev/null 2>&1; then
    python="$(tools/find_python.sh)"
    "$python" -m venv --clear .venv
fi
python=.venv/bin/python

# uv does not read pip's settings: hand over the mirror, where pip has one.
if [ -z "${UV_DEFAULT_INDEX:-}" ]; then
    mirror="${PIP_INDEX_URL:-$("$python" -m pip config get global.index-url 2>/dev/null || true)}"
    if [ -n "$mirror" ]; then
        export UV_DEFAULT_INDEX="$mirror"
    fi
fi

"$python" -m pip install --quiet --disable-pip-version-check "$(grep '^uv==' requirements.lock)"
# Compiled on install, so that the first Airflow start does not compile a few thousand modules within its time limits.
"$python" -m uv pip install --python "$python" --quiet --compile-bytecode -r requirements.lock
"$python" -m uv pip install --python "$python" --quiet --no-deps --no-build-isolation -e .
