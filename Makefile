# Two commands for a newcomer: `make demo`, `make test`. Everything installs into .venv.
SHELL := /bin/bash
.DEFAULT_GOAL := help
export PYTHON

PY := .venv/bin/python
STAMP := .venv/.installed
# Two processes, file by file in order: the layers that start Spark and Airflow come first.
PARALLEL := -n 2 --dist loadfile --no-loadscope-reorder
# `dev` has the runtime, the provider, and the extras of all connectors and back ends.
LOCK_EXTRAS := --extra demo --extra dev

.PHONY: connectors help setup preflight demo demo-kafka up test test-unit test-gate test-airflow test-ui test-all check words house rules sim sim-mutants crash-matrix format bench bench-quick bench-compare bench-w1 bench-latency bench-state bench-large-state \
  bench-coordinator bench-end bench-waiters nexmark-check flink-endings kafka yarn lock clean

help:  ## this list
	@sed -n 's/^\([a-z0-9-]*\):.*## \(.*\)$$/  make \1|\2/p' Makefile | column -t -s '|' 2>/dev/null \
	  || sed -n 's/^\([a-z0-9-]*\):.*## \(.*\)$$/  make \1 - \2/p' Makefile

preflight:
	@tools/preflight.sh

setup: $(STAMP)  ## make .venv from requirements.lock (PYTHON=python3.12 chooses the interpreter)
	@:

$(STAMP): requirements.lock setup.cfg pyproject.toml
	@echo "installing into .venv (once for each change of requirements.lock or setup.cfg)"
	@tools/setup.sh
	@touch $@

# Java is checked before anything is downloaded.
demo: preflight  ## run the flight delays DAG in a real Airflow on a real Spark, and check its output
	@$(MAKE) --no-print-directory setup
	@$(PY) tools/demo.py

demo-kafka: preflight  ## hours of a Kafka topic appear in an Iceberg table after an audit: real broker, Airflow and Spark
	@$(MAKE) --no-print-directory setup
	@$(PY) tools/demo_kafka.py

up: preflight  ## leave Airflow running with the example DAGs; prints address and login
	@$(MAKE) --no-print-directory setup
	@$(PY) tools/up.py

test: preflight  ## every layer: unit, real Spark, real Airflow (under 15 minutes on 2 cores)
	@$(MAKE) --no-print-directory setup
	@$(PY) -m pytest -m "not slow" $(PARALLEL)

test-unit: setup  ## the unit layer only; needs no Java
	@$(PY) -m pytest tests/unit tests/test_architecture.py

test-ui: preflight  ## a real browser drives the page in a real Airflow (SCREENSHOTS=docs/images takes pictures)
	@command -v chromium chromium-browser google-chrome >/dev/null \
	  || { echo "make test-ui needs Chromium, which is not here. Install it: apt-get install chromium" >&2; exit 1; }
	@$(MAKE) --no-print-directory setup
	@$(if $(SCREENSHOTS),TIDEGATE_SCREENSHOTS=$(abspath $(SCREENSHOTS))) $(PY) -m pytest tests/ui

test-airflow: preflight  ## one real `airflow standalone`, driven over REST: recipes, kills, clears (ONLY=gate: a part; VERSION=3.1: on that Airflow)
	@$(MAKE) --no-print-directory airflow-env
	@$(if $(VERSION),$(AIRFLOW_PY) -m pytest tests/unit/airflow)
	@$(AIRFLOW_PY) -m pytest tests/airflow $(if $(ONLY),-m "$(ONLY)") $(if $(filter 3.2,$(VERSION)),$(NOT_ON_3.2))

test-gate: preflight  ## the slow tests that `.ci/run` runs beside `test`: on real Spark, and in fresh environments
	@$(MAKE) --no-print-directory setup
	@$(PY) -m pytest tests/integration -m gate
	@$(PY) -m pytest tests/environments

connectors: setup  ## conformance suites of all connectors, and whole jobs on real systems while processes are killed
	@$(PY) tools/connectors.py

kafka: setup  ## fetch Kafka's packages with Maven, for the tests that need a real broker (43 MB)
	@$(PY) tests/kafka_broker.py

yarn: setup  ## fetch YARN's packages from Maven, for the tests that need a real one (56 MB)
	@$(PY) tests/yarn_cluster.py

# Airflow after the others and in one process, so that one standalone serves its tests.
test-all: preflight  ## `test` and the tests marked slow, `test-airflow` among them
	@$(MAKE) --no-print-directory setup
	@$(PY) -m pytest $(PARALLEL) --ignore tests/airflow
	@$(MAKE) --no-print-directory test-airflow

# The interpreter with the Airflow that VERSION=3.1, 3.2 or 3.3 names (its newest patch release); without VERSION, .venv's.
AIRFLOW_PY := $(if $(VERSION),$(or $(AIRFLOW_ENVS),.)/.venv-airflow-$(VERSION)/bin/python,$(PY))
# dag.test() of Airflow 3.2 asks its own API before that is up (docs/airflow/versions.md).
NOT_ON_3.2 := --deselect tests/airflow/test_airflow_standalone.py::test_a_bounded_job_runs_to_its_end_under_dag_test

.PHONY: airflow-env
airflow-env: setup
	@$(if $(VERSION),tools/airflow_env.sh $(VERSION),:)

check: setup  ## ruff, mypy --strict, import-linter, architecture and packaging tests, a test for every rule
	@$(PY) -m ruff check .
	@$(PY) -m ruff format --check .
	@$(PY) -m mypy
	@$(PY) -m mypy tools
	@.venv/bin/lint-imports --no-cache
	@$(PY) -m pytest tests/test_architecture.py tests/test_packaging.py
	@$(PY) tools/rules.py --quiet

words: setup  ## prose of documents, docstrings and messages by docs/contributing/writing.md (PATHS="docs provider": a part)
	@$(PY) tools/words.py $(PATHS)

house: setup  ## what the layout is like: folders, import cycles, size of the wheel and of an Airflow image (IMAGE=no: quick)
	@$(PY) tools/house.py $(if $(filter no,$(IMAGE)),--without-image)

rules: setup  ## rule of docs/semantics.md -> the tests that prove it; fails on a gap (ALL=1 lists every test)
	@$(PY) tools/rules.py $(if $(ALL),--all)

format: setup  ## let ruff format the code and sort imports
	@$(PY) -m ruff check --fix --select I .
	@$(PY) -m ruff format .

sim: setup  ## simulate SEEDS=2000 seeds of the protocol under faults; SEED=k replays one
	@PYTHONHASHSEED=0 PYTHONPATH=tests/support $(PY) -m simulator $(if $(SEED),--seed $(SEED),--seeds $(or $(SEEDS),2000)) \
	  $(if $(FIRST),--first $(FIRST)) $(if $(RESUME),--resume $(RESUME))

sim-mutants: setup  ## break the protocol on purpose, in many ways, and see each noticed
	@$(PY) tools/sim_mutants.py

crash-matrix: preflight  ## kill subtask or driver at every step of an end and a commit (ONLY=in_process|spark, SINKS=a,b, EVERY=10)
	@$(MAKE) --no-print-directory setup
	@$(PY) tests/faults/crash_matrix.py $(if $(ONLY),--only $(ONLY)) $(if $(SINKS),--sinks $(SINKS)) \
	  $(if $(EVERY),--every $(EVERY))

bench: preflight  ## engines beside each other on the same input; writes RESULTS.md, continues where it ended (ONLY=row)
	@$(MAKE) --no-print-directory setup
	@$(PY) benchmarks/bench.py $(if $(ONLY),--only $(ONLY) --again)

bench-quick: preflight  ## a short run of the same, about six minutes; writes nothing
	@$(MAKE) --no-print-directory setup
	@$(PY) benchmarks/bench.py --quick $(if $(ONLY),--only $(ONLY))

bench-compare: preflight  ## figures of two commits, in turn: make bench-compare A=main~5 B=main (ONLY=row)
	@$(MAKE) --no-print-directory setup
	@$(PY) benchmarks/bench_compare.py $(A) $(B) $(if $(ONLY),--only $(ONLY))

bench-coordinator: setup  ## cost of a checkpoint's bookkeeping at 100, 1,000 and 10,000 subtasks
	@$(PY) benchmarks/coordinator_scale.py --write

bench-w1: preflight  ## benchmark W1 beside Structured Streaming; writes benchmarks/RESULTS.md
	@$(MAKE) --no-print-directory setup
	@$(PY) benchmarks/w1.py --write

bench-latency: preflight  ## time from a row to its result at 2,000 to 200,000 rows/s, beside Structured Streaming
	@$(MAKE) --no-print-directory setup
	@$(PY) benchmarks/latency.py --write

bench-state: setup  ## keyed state of each back end at 100k, 1M and 4M keys: speed, snapshots full and incremental, restore
	@$(PY) benchmarks/state.py --write

bench-large-state: preflight  ## 20 million keys in a slot of 1 GiB, on RocksDB and real Spark: filled, killed, restored, read
	@$(MAKE) --no-print-directory setup
	@$(PY) benchmarks/large_state.py --write

bench-end: preflight  ## time from the last record to "all committed" for 1, 3, 6 two-phase-commit sinks in a chain
	@$(MAKE) --no-print-directory setup
	@$(PY) benchmarks/end_of_job.py --write

bench-waiters: setup  ## what 200 deferred Airflow tasks that wait for 50 jobs cost a triggerer
	@$(PY) benchmarks/airflow_waiters.py --write

nexmark-check: setup  ## Nexmark's queries, crashed on their way, beside DuckDB on the same events (ONLY=q3,q4, EVENTS=N)
	@cd benchmarks && ../$(PY) -m nexmark.check $(if $(EVENTS),--events $(EVENTS)) $(if $(ONLY),--only $(ONLY))

flink-endings: preflight  ## what rows become when a job ends, beside Flink (own environment); writes docs/endings.md
	@$(MAKE) --no-print-directory setup
	@$(PY) benchmarks/endings/endings.py --write $(if $(IN_PROCESS),--in-process)

lock: setup  ## resolve requirements.lock again for Python 3.11-3.14
	@{ printf '%s\n' \
	  '# The exact versions `make setup` installs, for Python 3.11 to 3.14: all extras of setup.cfg.' \
	  '# Written by `make lock` (uv, universal resolution); not edited by hand.' \
	  '# pyspark-client is kept out: it installs into the same folder as pyspark and overwrites its files.'; \
	  printf 'pyspark-client ; python_version < "3"\n' > .venv/lock-overrides.txt; \
	  $(PY) -m uv pip compile --quiet --universal --upgrade --python-version 3.11 --no-emit-index-url --no-header \
	    --override .venv/lock-overrides.txt $(LOCK_EXTRAS) setup.cfg; } > requirements.lock.new
	@! grep -n 'pyspark-client==\|https\?://' requirements.lock.new
	@mv requirements.lock.new requirements.lock

clean:  ## remove build output, caches and the demo's folder; .venv stays
	@rm -rf build dist *.egg-info .work .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis \
	  spark-warehouse metastore_db derby.log requirements.lock.new
	@find . -name __pycache__ -type d -not -path './.venv*/*' -prune -exec rm -rf {} +
