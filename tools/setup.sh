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

# uv does not read pip's settings: hand over the package mirror and the certificates, where pip has them.
pip_setting() {  # from pip's files and PIP_* variables alike
    "$python" -m pip config list 2>/dev/null | sed -n "s/^\(global\|install\|:env:\)\.$1='\(.*\)'\$/\2/p" | tail -n 1
}
mirror="${UV_DEFAULT_INDEX:-$(pip_setting index-url)}"
certificates="${SSL_CERT_FILE:-$(pip_setting cert)}"
if [ -n "$mirror" ]; then export UV_DEFAULT_INDEX="$mirror"; fi
if [ -n "$certificates" ]; then export SSL_CERT_FILE="$certificates"; fi

"$python" -m pip install --quiet --disable-pip-version-check "$(grep '^uv==' requirements.lock)"
# Compiled on install, so that the first Airflow start does not compile a few thousand modules within its time limits.
"$python" -m uv pip install --python "$python" --quiet --compile-bytecode -r requirements.lock
"$python" -m uv pip install --python "$python" --quiet --no-deps --no-build-isolation -e .
