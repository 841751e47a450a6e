#!/usr/bin/env bash
# Makes an environment with the newest patch release of one minor version of Airflow, and this package in editable form:
#   tools/airflow_env.sh 3.1            ->  .venv-airflow-3.1
#   AIRFLOW_ENVS=/big/disk tools/airflow_env.sh 3.1
# Uses the Python of .venv, and the versions of requirements.lock unless that Airflow requires others.
# Safe to repeat; rebuilt when requirements.lock or setup.cfg change. About 1 GB.
set -euo pipefail
cd "$(dirname "$0")/.."

version="${1:-}"
if ! [[ "$version" =~ ^3\.[0-9]+$ ]]; then
    echo "tidegate: '$version' is not a minor version of Airflow; give one such as VERSION=3.1" >&2
    exit 2
fi
folder="${AIRFLOW_ENVS:-.}/.venv-airflow-$version"
stamp="$folder/.installed"
if [ -e "$stamp" ] && ! [ requirements.lock -nt "$stamp" ] && ! [ setup.cfg -nt "$stamp" ]; then exit 0; fi

python="${VENV:-.venv}/bin/python"
. tools/uv_settings.sh
echo "installing Airflow $version into $folder"
rm -f "$stamp"
"$python" -m uv venv --quiet --allow-existing --python "$("$python" -c 'import sys; print(sys._base_executable)')" "$folder"

# Pins in the output file are preferences for uv: versions stay as in .venv unless this Airflow requires others. Beware:
# pyspark-client writes into the folder of pyspark; the extra `demo` keeps pandas below 3.
lock="$folder/requirements.lock"
grep -v '^apache-airflow' requirements.lock > "$lock"
printf 'apache-airflow==%s.*\n' "$version" > "$folder/airflow.txt"
printf 'pyspark-client ; python_version < "3"\n' > "$folder/overrides.txt"
"$python" -m uv pip compile --quiet --python "$folder/bin/python" --no-emit-index-url --no-header \
    --constraint "$folder/airflow.txt" --override "$folder/overrides.txt" \
    --extra demo --extra dev setup.cfg --output-file "$lock" >/dev/null
"$python" -m uv pip sync --quiet --python "$folder/bin/python" --compile-bytecode "$lock"
"$python" -m uv pip install --quiet --python "$folder/bin/python" --no-deps --no-build-isolation -e .
touch "$stamp"
