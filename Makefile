# evenq: `make` lists the targets. `make dev check` sets up a clone and runs all checks.
SHELL := /bin/bash
.DEFAULT_GOAL := help
CAMPAIGNS := tools/campaigns.mk
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# In CI a few failures of suites with real processes are retried (tools/second_look.py).
PYTEST = $(if $(EVENQ_TEST_ALL),$(BIN)/python tools/second_look.py )$(BIN)/pytest
# The system's Java, otherwise the small one from PyPI (see tools/java_home.py).
JAVA = $$($(BIN)/python tools/java_home.py)
# Container images often set it. Then every server of a test and every pytest worker compiles all of its modules again.
unexport PYTHONDONTWRITEBYTECODE
# Modules of another checkout would be tested, or hide that a test needs a path of this one.
unexport PYTHONPATH

.PHONY: arch audit campaigns check clean compat console demo dev dist docs fmt grpcio-front helm help integration kubernetes kubernetes-and-walks lint lock native native-checks protos sbom short-chaos site sizes spark spec test tidy type unit up

# After ##: the group of the target and its help text. Groups are listed in the order of their first target.
LIST = awk -F ':.*\#\# | \\| ' '/^[a-z_-]+:.*\#\# /{ if (!($$2 in of)) order[++groups] = $$2; of[$$2] = of[$$2] sprintf("  \033[1m%-24s\033[0m %s\n", $$1, $$3) } \
  END { for (i = 1; i <= groups; i++) printf "%s\n%s", order[i], of[order[i]] }'

help: ## start | list the targets for daily work
	@$(LIST) Makefile

campaigns: ## start | list the long runs: simulations, kills, broken links, benchmarks, other versions
	@$(LIST) $(CAMPAIGNS)

$(VENV)/.ready: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "evenq needs Python 3.11 or newer; set PYTHON=/path/to/python3.11"; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV) || { echo "python3 -m venv failed; on Debian: apt-get install python3-venv"; exit 1; }
	$(BIN)/python -m pip install --quiet --upgrade "pip>=25.1"
	$(BIN)/python -m pip install --quiet --require-hashes --no-deps -r constraints.txt
	$(BIN)/python -m pip install --quiet --no-deps --no-build-isolation -e .
	@touch $@

dev: $(VENV)/.ready $(VENV)/.native ## start | create .venv with all packages, pinned; with the compiled accelerator where cargo is installed

NATIVE_SOURCES := native/Cargo.toml native/Cargo.lock native/pyproject.toml native/evenq_native.pyi $(wildcard native/src/*.rs)
NATIVE_LOG := $(VENV)/native.log

# All works without it: its absence is one line and no failure. Old code of the same version must not stay.
$(VENV)/.native: $(VENV)/.ready $(NATIVE_SOURCES)
	@if $(MAKE) --no-print-directory native >$(NATIVE_LOG) 2>&1; then echo "evenq_native is built and installed: brokers use it (docs/internals/native.md)"; else \
	$(BIN)/python -m pip uninstall --quiet --yes evenq-native 2>/dev/null; \
	if command -v cargo >/dev/null; then why="see $(NATIVE_LOG)"; else why="cargo is not installed"; fi; \
	echo "evenq_native is not built, $$why: plain Python is used (docs/internals/native.md)"; fi
	@touch $@

native: $(VENV)/.ready ## write code | build the compiled accelerator and install it into .venv; needs cargo
	@command -v cargo >/dev/null || { echo "cargo is not installed; install Rust 1.85 or newer"; exit 1; }
	PATH="$(abspath $(BIN)):$$PATH" $(BIN)/python -m pip install --quiet --no-deps --no-build-isolation --force-reinstall ./native

native-checks: $(VENV)/.ready ## test | format, clippy and unit tests of the compiled accelerator; needs cargo
	cd native && cargo fmt --check
	cd native && cargo clippy --locked --all-targets --quiet -- -D warnings
	cd native && cargo test --locked --no-default-features --quiet

lock: dev ## write code | pin every package with its hashes, after a change of pyproject.toml
	$(BIN)/python tools/lock.py $(if $(UPGRADE),--upgrade)

audit: dev ## release | run bandit, and check every pinned package for known vulnerabilities
	$(BIN)/python tools/audit.py

sbom: dev ## release | write a bill of materials (CycloneDX) for each image to dist/sbom
	$(BIN)/python tools/sbom.py

dist: dev ## release | build source archive and wheel into dist, with the addresses in EVENQ_SITE_REPOSITORY and EVENQ_SITE_URL
	rm -f dist/evenq-*
	$(BIN)/python -m build --no-isolation --outdir dist .

sizes: dev ## release | write the packages and MB of each extra into docs/start/install.md
	$(BIN)/python tools/install_sizes.py --write

protos: dev ## write code | generate the stubs from protos/
	$(BIN)/python tools/gen_protos.py

fmt: dev ## write code | format the code
	$(BIN)/ruff format . && $(BIN)/ruff check --fix --quiet .

lint: dev ## write code | ruff, including its format check
	$(BIN)/ruff check . && $(BIN)/ruff format --check .

type: dev ## write code | mypy, strict
	$(BIN)/mypy

arch: dev ## write code | check the allowed imports between packages
	$(BIN)/lint-imports

tidy: dev ## write code | check sizes, names, stubs, reference pages and diagrams
	$(BIN)/python tools/tidy.py && $(BIN)/python tools/prose.py --check && $(BIN)/python tools/gen_protos.py --check && $(BIN)/python tools/gen_reference.py --check && $(BIN)/python tools/gen_spark_options.py --check && $(BIN)/python tools/gen_architecture.py --check && $(BIN)/python tools/gen_cookbook.py --check && $(BIN)/python tools/gen_guarantees.py --check

# Simulations take minutes: first, so that none is left when the other workers have nothing to do.
UNIT := tests/sim tests/unit tests/spec tests/storage

# `slow` marks long tests that rarely fail. `make check` runs all of them, CI a quarter: EVENQ_TEST_SLOW=K/N (decision 145).
QUICK := $(if $(EVENQ_TEST_ALL),,-m "not slow")

test: dev ## test | unit, spec, storage, simulation and integration tests, without the slow ones
	$(BIN)/pytest -q -n 5 --dist worksteal $(QUICK) $(UNIT)
	$(PYTEST) -q -n $(if $(EVENQ_TEST_ALL),4,6) --dist loadfile --no-loadscope-reorder $(QUICK) tests/integration
	@test -n "$(EVENQ_TEST_ALL)" || echo "Not run: the slow tests of these suites (make unit integration); Spark, Kubernetes, other SDKs (make help); kills (make campaigns). Everything: make check"

unit: dev ## test | all unit, spec, storage and simulation tests, including the slow ones; 6 minutes
	$(BIN)/pytest -q -n auto --dist worksteal $(UNIT)

integration: dev ## test | all tests with real processes on loopback, including the slow ones; 8 minutes
	$(BIN)/pytest -q -n 4 --dist loadfile --no-loadscope-reorder tests/integration

spec: dev ## test | list the tests of each promise; fails if a promise has none
	$(BIN)/python tools/spec_table.py

compat: dev ## test with others | the official Python, Node.js, Java, Rust and Go SDKs against evenq
	$(PYTEST) -q -n 2 --dist loadfile --durations=10 tests/compat

grpcio-front: dev ## test | TLS, the SDK and the official Python SDK against servers with front=grpcio and without the compiled accelerator
	EVENQ_TEST_FRONT=grpcio EVENQ_NATIVE=off $(PYTEST) -q -n 2 --dist loadfile tests/integration/test_sdk.py tests/integration/test_tls.py tests/integration/test_producer.py tests/compat/test_python_sdk.py

short-chaos: dev ## test | two kills, 40 kills of the store, and small live changes, as in CI
	EVENQ_TEST_ROUNDS=2 EVENQ_TEST_CYCLES=40 $(PYTEST) -q -n 2 --dist loadfile --durations=10 tests/chaos tests/live

helm: dev ## test with others | render and validate the chart
	$(BIN)/pytest -q tests/helm -m "not kubernetes"

kubernetes: dev ## test with others | install the chart on a real one-node Kubernetes and break pods: make kubernetes FLIGHTS=336776 (a year of flights)
	EVENQ_TEST_FLIGHTS=$(or $(FLIGHTS),6000) $(PYTEST) -q -n 2 --dist loadfile --no-loadscope-reorder --durations=10 tests/helm -m kubernetes

# Run by `make check` instead of `kubernetes`: the cluster mostly waits, so 20,000 walks of the model use the rest of one core.
kubernetes-and-walks: dev
	@mkdir -p build; nice -n 10 $(MAKE) replication-model WALKS=20000 JOBS=1 >build/walks.log 2>&1 & walks=$$!; \
	  $(MAKE) kubernetes; failed=$$?; wait $$walks || failed=1; cat build/walks.log; exit $$failed

spark: dev ## test with others | a real Spark with a real broker
	JAVA_HOME=$(JAVA) $(PYTEST) -q -n 2 --dist loadfile --no-loadscope-reorder --durations=10 tests/spark

console: dev ## test | the web console in Chromium: pages, forms, keyboard, screen reader, 1,000 topics; pictures in build/console-pictures
	$(PYTEST) -q tests/console

docs: dev ## test | run every command of the docs and every program of the cookbook, and build the site
	$(PYTEST) -q tests/docs

# Without the notice of the theme's makers about its successor.
site: dev ## write code | build the documentation as a site in build/site; make site SERVE=1 serves it at 127.0.0.1:8000
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs $(if $(SERVE),serve --dev-addr 127.0.0.1:$(or $(PORT),8000),build --strict)

up: dev ## start | a local cluster in one command
	$(BIN)/evenq up

demo: dev ## start | a full example: a year of flights, Spark jobs, a leader lost with its disk; all figures are compared
	JAVA_HOME=$(JAVA) PYTHONPATH=examples $(BIN)/python -m flight_demo

# Two at a time: code checks use one thread each, and the test cluster mostly waits (probes, rollouts, three minutes
# without a restart). The longest first.
check: dev ## release | every suite with all slow tests; CI runs a quarter of those, another one for each commit
	$(MAKE) -j2 --output-sync=target lint type arch tidy audit sbom spec native-checks
	$(MAKE) test helm EVENQ_TEST_ALL=1
	$(MAKE) -j2 --output-sync=target kubernetes-and-walks spark short-chaos compat docs console grpcio-front

clean: ## start | delete the files that make created
	rm -rf $(VENV) native/target .pytest_cache .mypy_cache .ruff_cache dist build .demo

include $(CAMPAIGNS)
