#!/usr/bin/env bash
# Makes .venv with exactly what requirements.lock says, and this package in editable form. Safe to repeat.
# PYTHON=<interpreter> chooses the Python; a package mirror and certificates are taken from pip's own settings.
set -euo pipefail
cd "$(dirname "$0")/.."

if ! .venv/bin/python -m pip --version >/dev/null 2>&1; then
    python="$(tools/find_python.sh)"
    "$python" -m venv --clear .venv
fi
python=.venv/bin/python

. tools/uv_settings.sh
"$python" -m pip install --quiet --disable-pip-version-check "$(grep '^uv==' requirements.lock)"
# Compiled on install, so that the first Airflow start does not compile a few thousand modules within its time limits.
"$python" -m uv pip install --python "$python" --quiet --compile-bytecode -r requirements.lock
"$python" -m uv pip install --python "$python" --quiet --no-deps --no-build-isolation -e .
