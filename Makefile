# evenq: `make` lists the targets. Clone to green is `make dev check`.
SHELL := /bin/bash
.DEFAULT_GOAL := help
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# The system's Java if there is one, else the small one from PyPI (see tools/java_home.py).
JAVA = $$($(BIN)/python tools/java_home.py)

.PHONY: help dev lock audit sbom protos fmt lint type arch tidy test sim integration spec compat chaos crowd storage kill-loop verify live live-kills helm kubernetes spark spark-oldest docs bench bench-store bench-delivery bench-rebalance bench-peers bench-spark bench-spark-idle up demo check clean spark-refused oldest spark-chaos spark-group plain-sends short-chaos grpcio-front replication-model replication-model-search

help: ## list the targets
	@grep -hE '^[a-z_-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  \033[1m%-12s\033[0m %s\n", $$1, $$2}'

$(VENV)/.ready: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "evenq needs Python 3.11 or newer; set PYTHON=/path/to/python3.11"; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV) || { echo "python3 -m venv failed; on Debian: apt-get install python3-venv"; exit 1; }
	$(BIN)/python -m pip install --quiet --upgrade "pip>=25.1"
	$(BIN)/python -m pip install --quiet --require-hashes --no-deps -r constraints.txt
	$(BIN)/python -m pip install --quiet --no-deps --no-build-isolation -e .
	@touch $@

dev: $(VENV)/.ready ## make .venv with everything in it, pinned

lock: dev ## pin every package with its hashes again, after a change of pyproject.toml
	$(BIN)/python tools/lock.py $(if $(UPGRADE),--upgrade)

audit: dev ## bandit over the code, advisories of every pinned package
	$(BIN)/python tools/audit.py

sbom: dev ## a bill of materials (CycloneDX) for each image, in dist/sbom
	$(BIN)/python tools/sbom.py

protos: dev ## generate the stubs again from protos/
	$(BIN)/python tools/gen_protos.py

fmt: dev ## format the code
	$(BIN)/ruff format . && $(BIN)/ruff check --fix --quiet .

lint: dev ## ruff, formatting included
	$(BIN)/ruff check . && $(BIN)/ruff format --check .

type: dev ## mypy, strict
	$(BIN)/mypy

arch: dev ## who imports whom
	$(BIN)/lint-imports

tidy: dev ## sizes, names, stale stubs and reference pages
	$(BIN)/python tools/tidy.py && $(BIN)/python tools/gen_protos.py --check && $(BIN)/python tools/gen_reference.py --check && $(BIN)/python tools/gen_spark_options.py --check

test: dev ## unit, spec, storage and simulation tests, then the real servers on loopback
	$(BIN)/pytest -q -n auto tests/unit tests/spec tests/storage tests/sim
	$(BIN)/pytest -q -n 4 --dist loadfile tests/integration

plain-sends: dev ## hold the two readers of SendMessage against each other: make plain-sends COUNT=1000000 SEED=1
	$(BIN)/python tests/unit/evenq_broker/plain_requests.py --count $(or $(COUNT),1000000) --seed $(or $(SEED),1)

sim: dev ## play the cluster in virtual time: make sim SEEDS=10000 FIRST=0, or PLANT=drain|fence|ids|leave
	$(BIN)/python tests/sim/run.py --seeds $(or $(SEEDS),1000) --first $(or $(FIRST),0) $(if $(PLANT),--plant $(PLANT))

replication-model: dev ## random walks of the replication model: make replication-model WALKS=100000 SEED=0
	$(BIN)/python tests/sim/run_replication.py --walks $(or $(WALKS),100000) --seed $(or $(SEED),0)

replication-model-search: dev ## every order of the model's small scopes: make replication-model-search STATES=2000000
	$(BIN)/python tests/sim/run_replication.py --search --states $(or $(STATES),2000000)

integration: dev ## real processes on loopback
	$(BIN)/pytest -q -n 4 --dist loadfile tests/integration

spec: dev ## which test proves which promise; fails if one has none
	$(BIN)/python tools/spec_table.py

compat: dev ## the official Python, Node.js, Rust and Go SDKs against ours
	$(BIN)/pytest -q tests/compat

grpcio-front: dev ## the way back: TLS, the SDK and the official Python SDK on servers with front=grpcio
	EVENQ_TEST_FRONT=grpcio $(BIN)/pytest -q -n 2 --dist loadfile tests/integration/test_sdk.py tests/integration/test_tls.py tests/integration/test_producer.py tests/compat/test_python_sdk.py

chaos: dev ## kill -9 while the checker watches: make chaos ROUNDS=20
	EVENQ_TEST_ROUNDS=$(or $(ROUNDS),20) $(BIN)/pytest -q tests/chaos

short-chaos: dev ## two kills, 100 of the store's, and small live changes, as CI runs them
	EVENQ_TEST_ROUNDS=2 EVENQ_TEST_CYCLES=100 $(BIN)/pytest -q tests/chaos tests/live

crowd: dev ## 10,000 clients that come at once and vanish, with the figures; two minutes
	EVENQ_TEST_SCALE=full $(BIN)/pytest -q tests/integration/test_hostile_clients.py -k vanish_by_the_thousand
	EVENQ_TEST_SCALE=full $(BIN)/pytest -q --log-cli-level=INFO tests/integration/test_hostile_clients.py -k connections_that_come

storage: dev ## crash, cut, flip and fail the store in every way, at full size; half an hour
	$(BIN)/python tests/proofs/run.py storage --ledger tests/storage/ledger.md
	EVENQ_TEST_SCALE=full $(BIN)/pytest -q -n auto tests/storage/test_stateful.py

kill-loop: dev ## kill -9 the store and the broker again and again: make kill-loop CYCLES=1000
	$(BIN)/python tests/proofs/run.py kill_loop --cycles $(or $(CYCLES),1000) --flush sync --hits-min 5 --ledger tests/chaos/ledger.md
	$(BIN)/python tests/proofs/run.py kill_loop --cycles $(or $(CYCLES),1000) --flush async --hits-min 5 --ledger tests/chaos/ledger.md

verify: dev ## evenq verify while a broker is killed every 30 s: make verify MINUTES=10
	EVENQ_TEST_KILL_SECONDS=30 EVENQ_TEST_ROUNDS=$$(( 2 * $(or $(MINUTES),10) )) $(BIN)/pytest -q -s tests/chaos/test_verify.py

live: dev ## groups grow, shrink and restart under 2,000 messages/s: make live RATE=2000 MEMBERS=8
	EVENQ_TEST_RATE=$(or $(RATE),2000) EVENQ_TEST_MEMBERS=$(or $(MEMBERS),8) EVENQ_TEST_REST_MS=$(or $(REST_MS),250) EVENQ_TEST_SDK_RATE=$(or $(SDK_RATE),2000) $(BIN)/pytest -q -s tests/live/test_changes.py

live-kills: dev ## kill -9 members, brokers and rebalancers in turn under load: make live-kills MINUTES=10
	EVENQ_TEST_RATE=$(or $(RATE),2000) EVENQ_TEST_MINUTES=$(or $(MINUTES),10) $(BIN)/pytest -q -s tests/live/test_kills.py

helm: dev ## the chart, rendered and validated
	$(BIN)/pytest -q tests/helm -m "not kubernetes"

kubernetes: dev ## install the chart on a real one-node Kubernetes and break a pod
	$(BIN)/pytest -q tests/helm -m kubernetes

# Wheels of other versions, in front of those of .venv by PYTHONPATH.
build/%/.ready:
	rm -rf $(@D) && $(BIN)/python -m pip install --quiet --no-deps --target $(@D) $(subst +, ,$(subst _,==,$*))
	@touch $@

# The lower bounds of pyproject.toml, as tests/unit/tools/test_lock.py checks.
OLDEST := protobuf_6.33.0+grpcio_1.76.0+pyarrow_18.0.0+numpy_1.26.0+crc32c_2.7+prometheus-client_0.21.0
oldest: dev build/$(OLDEST)/.ready ## stubs, SDK and Spark source on the oldest protobuf, grpcio, pyarrow and numpy that they take
	PYTHONPATH=build/$(OLDEST) $(BIN)/pytest -q tests/unit/pyspark_evenq tests/unit/evenq/wire tests/unit/evenq/client

spark-oldest: dev build/pyspark_4.2.0/.ready ## the Spark source and sink on the oldest PySpark that they take (480 MB)
	PYTHONPATH=build/pyspark_4.2.0 $(BIN)/pytest -q tests/unit/pyspark_evenq
	JAVA_HOME=$(JAVA) PYTHONPATH=build/pyspark_4.2.0 $(BIN)/pytest -q tests/spark/test_batch.py tests/spark/test_stream.py tests/spark/test_14_sink.py tests/spark/test_16_places.py

spark-refused: dev build/pyspark_4.1.1/.ready ## what a PySpark that is too old is told (450 MB)
	JAVA_HOME=$(JAVA) PYTHONPATH=build/pyspark_4.1.1 $(BIN)/pytest -q tests/spark/test_old_spark.py

spark-chaos: dev ## kill -9 of every part of two Spark queries and of the brokers: make spark-chaos ROUNDS=50 ONLY=broker
	JAVA_HOME=$(JAVA) EVENQ_TEST_ROUNDS=$(or $(ROUNDS),50) EVENQ_TEST_ONLY="$(ONLY)" $(BIN)/pytest -q -s tests/spark/test_01_kill_loop.py

spark: dev ## a real Spark reads a real broker
	JAVA_HOME=$(JAVA) $(BIN)/pytest -q tests/spark

spark-group: dev ## two Spark jobs and two consumers share a group, one comes or goes each second: make spark-group FOR=60 RATE=200
	JAVA_HOME=$(JAVA) EVENQ_TEST_SECONDS=$(or $(FOR),60) EVENQ_TEST_RATE=$(or $(RATE),200) $(BIN)/pytest -q -s tests/spark/test_06_group.py

docs: dev ## every command of the docs, run
	$(BIN)/pytest -q tests/docs

bench: dev ## ours beside its floor, in one run
	$(BIN)/python benchmarks/run.py

bench-store: dev ## the store alone beside floors and peers; half an hour
	$(BIN)/python benchmarks/store.py

bench-delivery: dev ## every kind and call of a delivery beside its floor; ten minutes
	$(BIN)/python benchmarks/delivery.py

bench-rebalance: dev ## how long queues rest while 100 members of 1,000 queues change; ten minutes
	$(BIN)/python benchmarks/rebalance.py

bench-peers: dev ## beside Apache RocketMQ on its own protocol: make bench-peers ROUNDS=5; fetches its jars, needs Java and Go
	$(BIN)/python benchmarks/peers.py --rounds $(or $(ROUNDS),5)

bench-spark: dev ## Spark reads from evenq, from Kafka and from nowhere in turn: make bench-spark ROWS=400000 ROUNDS=5
	JAVA_HOME=$(JAVA) $(BIN)/python benchmarks/spark.py --rows $(or $(ROWS),400000) --rounds $(or $(ROUNDS),5)

bench-spark-idle: dev ## what a Spark query without data costs, calls and CPU; a minute
	JAVA_HOME=$(JAVA) $(BIN)/python benchmarks/spark.py --only idle --no-kafka --rows 1000

up: dev ## a local cluster in one command
	$(BIN)/evenq up

demo: dev ## the whole job: a year of flights, a group that changes, two Spark jobs, a stream beside consumers, every figure compared
	JAVA_HOME=$(JAVA) $(BIN)/python -m evenq.cli.demo

# Two at a time, because the test cluster mostly waits (probes, rollouts, three minutes without a restart); the longest first.
check: dev lint type arch tidy audit sbom spec test helm ## all that CI runs
	$(MAKE) -j2 --output-sync=target kubernetes spark compat docs short-chaos grpcio-front

clean: ## remove what make made
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache dist build .demo
