# evenq: `make` lists the targets. Clone to green is `make dev check`.
SHELL := /bin/bash
.DEFAULT_GOAL := help
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# In CI a few failures of suites with real processes get a second look (tools/second_look.py).
PYTEST = $(if $(EVENQ_TEST_ALL),$(BIN)/python tools/second_look.py )$(BIN)/pytest
# The system's Java if there is one, else the small one from PyPI (see tools/java_home.py).
JAVA = $$($(BIN)/python tools/java_home.py)
# Images of containers often set it. Then every server that a test starts, and every worker of pytest, compiles all of its modules again.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help unit fuzz-front dev lock audit sbom protos fmt lint type arch tidy test sim sim-replicated sim-mutants integration spec compat chaos crowd storage kill-loop verify live live-kills helm kubernetes kubernetes-and-walks spark spark-oldest docs bench bench-store bench-delivery bench-rebalance bench-peers bench-tls bench-connections bench-nats bench-attacks bench-spark bench-spark-idle up demo check clean spark-refused oldest spark-chaos spark-group plain-sends short-chaos verify-replicated replication-faults replication-kills replication-upgrade bench-replication bench-replication-peers grpcio-front replication-model replication-model-search shuffled kubernetes-replicated members

# Behind ## stand what one wants to do and what the target does; the groups come in the order of their first target.
help: ## start | list the targets
	@awk -F ':.*## | \\| ' '/^[a-z_-]+:.*## /{ if (!($$2 in of)) order[++groups] = $$2; of[$$2] = of[$$2] sprintf("  \033[1m%-24s\033[0m %s\n", $$1, $$3) } \
	  END { for (i = 1; i <= groups; i++) printf "%s\n%s", order[i], of[order[i]] }' $(MAKEFILE_LIST)

$(VENV)/.ready: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "evenq needs Python 3.11 or newer; set PYTHON=/path/to/python3.11"; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV) || { echo "python3 -m venv failed; on Debian: apt-get install python3-venv"; exit 1; }
	$(BIN)/python -m pip install --quiet --upgrade "pip>=25.1"
	$(BIN)/python -m pip install --quiet --require-hashes --no-deps -r constraints.txt
	$(BIN)/python -m pip install --quiet --no-deps --no-build-isolation -e .
	@touch $@

dev: $(VENV)/.ready ## start | make .venv with everything in it, pinned

lock: dev ## write code | pin every package with its hashes again, after a change of pyproject.toml
	$(BIN)/python tools/lock.py $(if $(UPGRADE),--upgrade)

audit: dev ## release | bandit over the code, advisories of every pinned package
	$(BIN)/python tools/audit.py

sbom: dev ## release | a bill of materials (CycloneDX) for each image, in dist/sbom
	$(BIN)/python tools/sbom.py

protos: dev ## write code | generate the stubs again from protos/
	$(BIN)/python tools/gen_protos.py

fmt: dev ## write code | format the code
	$(BIN)/ruff format . && $(BIN)/ruff check --fix --quiet .

lint: dev ## write code | ruff, formatting included
	$(BIN)/ruff check . && $(BIN)/ruff format --check .

type: dev ## write code | mypy, strict
	$(BIN)/mypy

arch: dev ## write code | who imports whom
	$(BIN)/lint-imports

tidy: dev ## write code | sizes, names, stale stubs, reference pages and pictures
	$(BIN)/python tools/tidy.py && $(BIN)/python tools/gen_protos.py --check && $(BIN)/python tools/gen_reference.py --check && $(BIN)/python tools/gen_spark_options.py --check && $(BIN)/python tools/gen_architecture.py --check

UNIT := tests/unit tests/spec tests/storage tests/sim

# `slow` is what takes long and is rarely wrong. CI sets EVENQ_TEST_ALL and leaves nothing out.
QUICK := $(if $(EVENQ_TEST_ALL),,-m "not slow")

test: dev ## test | unit, spec, storage, simulation and integration tests, without the slow ones
	$(BIN)/pytest -q -n 3 $(QUICK) $(UNIT)
	$(PYTEST) -q -n $(if $(EVENQ_TEST_ALL),4,6) --dist loadfile --no-loadscope-reorder $(QUICK) tests/integration
	@test -n "$(EVENQ_TEST_ALL)" || echo "Left out: the slow ones of these (make unit integration); Spark, Kubernetes, other SDKs, kills (make help). All of it, as CI: make check"

unit: dev ## test | every unit, spec, storage and simulation test, the slow ones too; six minutes
	$(BIN)/pytest -q -n auto $(UNIT)

plain-sends: dev ## test | hold the two readers of SendMessage and Publish against each other: make plain-sends COUNT=1000000 SEED=1
	$(BIN)/python tests/unit/evenq_broker/core/sending/plain_requests.py --count $(or $(COUNT),1000000) --seed $(or $(SEED),1)

fuzz-front: dev ## test | input of hostile clients for the HTTP/2 core: make fuzz-front COUNT=10000000 SEED=1; five minutes on two cores
	$(BIN)/python tests/unit/evenq/serving/http2/hostile_input.py --count $(or $(COUNT),10000000) --seed $(or $(SEED),1) --processes 2

sim: dev ## test | play the cluster in virtual time: make sim SEEDS=10000 FIRST=0, or PLANT=drain|fence|ids|leave; FIRST=2000000 plays lifecycles
	$(BIN)/python tests/sim/run.py --seeds $(or $(SEEDS),1000) --first $(or $(FIRST),0) $(if $(PLANT),--plant $(PLANT))

sim-replicated: dev ## test | three copies in virtual time, disks and links that fail: make sim-replicated SEEDS=2000 FIRST=0, or PLANT=5663
	$(BIN)/python tests/sim/run_replicated.py --seeds $(or $(SEEDS),2000) --first $(or $(FIRST),0) $(if $(PLANT),--plant "$(PLANT)")

sim-mutants: dev ## test | is that simulation awake? plants every fault in turn, historic and rule by rule, and fails if one is not found
	$(BIN)/python tests/sim/run_replicated.py --mutants $(if $(SEEDS),--seeds $(SEEDS))

replication-model: dev ## test | random walks of the replication model: make replication-model WALKS=100000 SEED=0
	$(BIN)/python tests/sim/run_replication.py --mixed --walks $(or $(WALKS),100000) --seed $(or $(SEED),0) $(if $(JOBS),--jobs $(JOBS))

replication-model-search: dev ## test | every order of the model's small scopes: make replication-model-search STATES=2000000; two minutes of a processor
	$(BIN)/python tests/sim/run_replication.py --search --states $(or $(STATES),2000000)

integration: dev ## test | every test with real processes on loopback, the slow ones too; eight minutes
	$(BIN)/pytest -q -n 4 --dist loadfile --no-loadscope-reorder tests/integration

shuffled: dev ## test | files, and the tests of each, in a random order: make shuffled SEED=1 ON=tests/integration
	$(BIN)/pytest -q -n 4 --dist loadfile --no-loadscope-reorder --shuffle=$(or $(SEED),1) $(or $(ON),tests/integration)

spec: dev ## test | which test proves which promise; fails if one has none
	$(BIN)/python tools/spec_table.py

compat: dev ## test with others | the official Python, Node.js, Java, Rust and Go SDKs against ours
	$(PYTEST) -q -n 2 --dist loadfile --durations=10 tests/compat

grpcio-front: dev ## test | the way back: TLS, the SDK and the official Python SDK on servers with front=grpcio
	EVENQ_TEST_FRONT=grpcio $(PYTEST) -q -n 2 --dist loadfile tests/integration/test_sdk.py tests/integration/test_tls.py tests/integration/test_producer.py tests/compat/test_python_sdk.py

chaos: dev ## break things | kill -9 while the checker watches: make chaos ROUNDS=20
	EVENQ_TEST_RECOVERY_MS=30000 EVENQ_TEST_ROUNDS=$(or $(ROUNDS),20) $(BIN)/pytest -q tests/chaos

short-chaos: dev ## break things | two kills, 100 of the store's, and small live changes, as CI runs them
	EVENQ_TEST_ROUNDS=2 EVENQ_TEST_CYCLES=100 $(PYTEST) -q -n 2 --dist loadfile --durations=10 tests/chaos tests/live

crowd: dev ## test | 10,000 clients that come at once and vanish, with the figures; two minutes
	EVENQ_TEST_SCALE=full $(BIN)/pytest -q tests/integration/test_hostile_clients.py -k vanish_by_the_thousand
	EVENQ_TEST_SCALE=full $(BIN)/pytest -q --log-cli-level=INFO tests/integration/test_hostile_clients.py -k connections_that_come

storage: dev ## test | crash, cut, flip and fail the store in every way, at full size; half an hour
	$(BIN)/python tests/proofs/run.py storage --ledger tests/storage/ledger.md
	EVENQ_TEST_SCALE=full $(BIN)/pytest -q -n auto tests/storage/test_stateful.py

kill-loop: dev ## break things | kill -9 the store and the broker again and again: make kill-loop CYCLES=1000
	$(BIN)/python tests/proofs/run.py kill_loop --cycles $(or $(CYCLES),1000) --flush sync --hits-min 5 --ledger tests/chaos/ledger.md
	$(BIN)/python tests/proofs/run.py kill_loop --cycles $(or $(CYCLES),1000) --flush async --hits-min 5 --ledger tests/chaos/ledger.md

verify-replicated: dev ## break things | evenq verify, and all kinds of members, on three copies whose leaders are killed, stopped and moved every 20 s: make verify-replicated MINUTES=10
	EVENQ_TEST_TOLERANCE_MS=5000 EVENQ_TEST_KILL_SECONDS=20 EVENQ_TEST_ROUNDS=$$(( 3 * $(or $(MINUTES),10) )) $(BIN)/pytest -q -s tests/chaos/test_replicated_verify.py tests/chaos/test_readers_keep_reading.py

replication-faults: dev ## break things | every shape of broken links between three copies: make replication-faults SECONDS=180 SEED=1 RECORD=etcd; that long for each of 15 shapes (etcd: 19)
	$(BIN)/python tests/proofs/run.py group_faults links --record $(or $(RECORD),lease) --seconds $(or $(SECONDS),180) --seed $(or $(SEED),1) --ledger tests/chaos/group_ledger.md

replication-kills: dev ## break things | kill -9 leaders, followers and the record's place of three copies, at failpoints too: make replication-kills CYCLES=1000 SEED=1 RECORD=etcd
	$(BIN)/python tests/proofs/run.py group_faults kills --cycles $(or $(CYCLES),1000) --mode sync --record $(or $(RECORD),lease) --seed $(or $(SEED),1) --ledger tests/chaos/group_ledger.md
	$(BIN)/python tests/proofs/run.py group_faults kills --cycles $(or $(CYCLES),1000) --mode memory --record $(or $(RECORD),lease) --seed $(or $(SEED),1) --ledger tests/chaos/group_ledger.md

replication-upgrade: dev ## break things | replace three copies one by one under load, to this version and back: make replication-upgrade ROUNDS=20 FROM=v0.1.0
	$(BIN)/python tests/proofs/run.py rolling_upgrade --rounds $(or $(ROUNDS),20) $(if $(FROM),--from $(FROM)) --ledger tests/chaos/upgrade_ledger.md

members: dev ## break things | members of the Go, Java and Python SDKs come, close and are killed while brokers restart: make members MINUTES=15 STOPS=14 SDKS=go,java,python
	$(BIN)/python tests/proofs/run.py members --minutes $(or $(MINUTES),15) $(if $(STOPS),--stops $(STOPS)) $(if $(SDKS),--sdks $(SDKS))

verify: dev ## break things | evenq verify while a broker is killed every 30 s: make verify MINUTES=10
	EVENQ_TEST_TOLERANCE_MS=5000 EVENQ_TEST_KILL_SECONDS=30 EVENQ_TEST_ROUNDS=$$(( 2 * $(or $(MINUTES),10) )) $(BIN)/pytest -q -s tests/chaos/test_verify.py

live: dev ## break things | groups grow, shrink and restart under 2,000 messages/s: make live RATE=2000 MEMBERS=8
	EVENQ_TEST_RECOVERY_MS=30000 EVENQ_TEST_RATE=$(or $(RATE),2000) EVENQ_TEST_MEMBERS=$(or $(MEMBERS),8) EVENQ_TEST_REST_MS=$(or $(REST_MS),250) EVENQ_TEST_SDK_RATE=$(or $(SDK_RATE),2000) $(BIN)/pytest -q -s tests/live/test_changes.py

live-kills: dev ## break things | kill -9 members, brokers and rebalancers in turn under load: make live-kills MINUTES=10
	EVENQ_TEST_RATE=$(or $(RATE),2000) EVENQ_TEST_MINUTES=$(or $(MINUTES),10) EVENQ_TEST_SLACK_MS=4000 $(BIN)/pytest -q -s tests/live/test_kills.py

helm: dev ## test with others | the chart, rendered and validated
	$(BIN)/pytest -q tests/helm -m "not kubernetes"

kubernetes: dev ## test with others | install the chart on a real one-node Kubernetes and break pods: make kubernetes FLIGHTS=336776 is a year of flights
	EVENQ_TEST_FLIGHTS=$(or $(FLIGHTS),6000) $(PYTEST) -q -n 2 --dist loadfile --no-loadscope-reorder --durations=10 tests/helm -m kubernetes

# What CI runs in its place: the cluster mostly waits, so 100,000 walks of the model have what it leaves of one processor.
kubernetes-and-walks: dev
	@mkdir -p build; nice -n 10 $(MAKE) replication-model WALKS=100000 JOBS=1 >build/walks.log 2>&1 & walks=$$!; \
	  $(MAKE) kubernetes; failed=$$?; wait $$walks || failed=1; cat build/walks.log; exit $$failed

kubernetes-replicated: dev ## break things | three copies on a real one-node Kubernetes under two SDKs: leaders and volumes lost, rollouts, no API server: make kubernetes-replicated LOSSES=10 RATE=500
	EVENQ_TEST_LOAD_RATE=$(or $(RATE),500) EVENQ_TEST_LOSSES=$(or $(LOSSES),10) EVENQ_TEST_API_AWAY_SECONDS=60 EVENQ_TEST_QUIET_SECONDS=$(or $(QUIET),600) EVENQ_TEST_FAILOVER_SECONDS=10 EVENQ_TEST_ALL_AWAY_SECONDS=12 $(BIN)/pytest -q -s tests/helm/test_replicated_kubernetes.py

# Wheels of other versions, in front of those of .venv by PYTHONPATH.
build/%/.ready:
	rm -rf $(@D) && $(BIN)/python -m pip install --quiet --no-deps --target $(@D) $(subst +, ,$(subst _,==,$*))
	@touch $@

# The lower bounds of pyproject.toml, as tests/unit/tools/test_lock.py checks.
OLDEST := protobuf_6.33.0+grpcio_1.76.0+pyarrow_18.0.0+numpy_1.26.0+crc32c_2.7+prometheus-client_0.21.0
oldest: dev build/$(OLDEST)/.ready ## test with others | stubs, SDK and Spark source on the oldest protobuf, grpcio, pyarrow and numpy that they take
	PYTHONPATH=build/$(OLDEST) $(BIN)/pytest -q tests/unit/pyspark_evenq tests/unit/evenq/wire tests/unit/evenq/client

spark-oldest: dev build/pyspark_4.2.0/.ready ## test with others | the Spark source and sink on the oldest PySpark that they take (480 MB)
	PYTHONPATH=build/pyspark_4.2.0 $(BIN)/pytest -q tests/unit/pyspark_evenq
	JAVA_HOME=$(JAVA) PYTHONPATH=build/pyspark_4.2.0 $(BIN)/pytest -q tests/spark/test_batch.py tests/spark/test_stream.py tests/spark/test_14_sink.py tests/spark/test_16_places.py

spark-refused: dev build/pyspark_4.1.1/.ready ## test with others | how a PySpark that is too old is refused (450 MB)
	JAVA_HOME=$(JAVA) PYTHONPATH=build/pyspark_4.1.1 $(BIN)/pytest -q tests/spark/test_old_spark.py

spark-chaos: dev ## test with others | kill -9 of every part of two Spark queries and of the brokers: make spark-chaos ROUNDS=50 ONLY=broker
	JAVA_HOME=$(JAVA) EVENQ_TEST_ROUNDS=$(or $(ROUNDS),50) EVENQ_TEST_EXECUTORS=2 EVENQ_TEST_RATE=$(or $(RATE),150) EVENQ_TEST_ONLY="$(ONLY)" $(BIN)/pytest -q -s tests/spark/test_01_kill_loop.py

spark: dev ## test with others | a real Spark reads a real broker
	JAVA_HOME=$(JAVA) $(PYTEST) -q -n 2 --dist loadfile --no-loadscope-reorder --durations=10 tests/spark

spark-group: dev ## test with others | two Spark jobs and two consumers share a group, one comes or goes each second: make spark-group FOR=60 RATE=200
	JAVA_HOME=$(JAVA) EVENQ_TEST_SECONDS=$(or $(FOR),60) EVENQ_TEST_RATE=$(or $(RATE),200) $(BIN)/pytest -q -s tests/spark/test_06_group.py

docs: dev ## test | every command of the docs, run
	$(PYTEST) -q tests/docs

bench: dev ## measure | ours beside its floor, in one run
	$(BIN)/python benchmarks/run.py

bench-store: dev ## measure | the store alone beside floors and peers; half an hour
	$(BIN)/python benchmarks/store.py

bench-delivery: dev ## measure | every kind and call of a delivery beside its floor; ten minutes
	$(BIN)/python benchmarks/delivery.py

bench-rebalance: dev ## measure | how long queues rest while 100 members of 1,000 queues change; ten minutes
	$(BIN)/python benchmarks/rebalance.py

bench-peers: dev ## measure | beside Apache RocketMQ on its own protocol: make bench-peers ROUNDS=5; fetches its jars, needs Java and Go
	$(BIN)/python benchmarks/peers.py --rounds $(or $(ROUNDS),5)

bench-tls: dev ## measure | the loads of bench-peers without TLS, with TLS, with mTLS: make bench-tls ROUNDS=5; needs Go, ten minutes
	$(BIN)/python benchmarks/transports.py --rounds $(or $(ROUNDS),5)

bench-connections: dev ## measure | 10,000 clients that wait, each with a stream and a poll: make bench-connections CONNECTIONS=10000; five minutes
	$(BIN)/python benchmarks/connections.py --connections $(or $(CONNECTIONS),10000)

bench-attacks: dev ## measure | a good client beside attackers, at gRPC's own server and at ours: make bench-attacks FOR=10; eight minutes
	$(BIN)/python benchmarks/attacks.py --seconds $(or $(FOR),10)

bench-nats: dev ## measure | the wire and the SDK beside NATS JetStream: make bench-nats ROUNDS=5; builds its server, needs Go, seven minutes
	$(BIN)/python benchmarks/jetstream.py --rounds $(or $(ROUNDS),5)

bench-replication: dev ## measure | three copies beside one with the same flush, catch-up, pauses: make bench-replication ROUNDS=5; needs Go, ten minutes
	$(BIN)/python benchmarks/replication.py --rounds $(or $(ROUNDS),5)

bench-replication-peers: dev ## measure | three copies beside RocketMQ's SYNC_MASTER with two slaves: make bench-replication-peers ROUNDS=5; needs Java, Maven, Go and 8 GB
	$(BIN)/python benchmarks/replication_peers.py --rounds $(or $(ROUNDS),5)

bench-spark: dev ## measure | Spark reads from evenq, from Kafka and from nowhere in turn: make bench-spark ROWS=400000 ROUNDS=5
	JAVA_HOME=$(JAVA) $(BIN)/python benchmarks/spark.py --rows $(or $(ROWS),400000) --rounds $(or $(ROUNDS),5)

bench-spark-idle: dev ## measure | what a Spark query without data costs, calls and CPU; a minute
	JAVA_HOME=$(JAVA) $(BIN)/python benchmarks/spark.py --only idle --no-kafka --rows 1000

up: dev ## start | a local cluster in one command
	$(BIN)/evenq up

demo: dev ## start | the whole job: a year of flights, a group that changes, two Spark jobs, a stream beside consumers, a leader that dies with its disk, every figure compared
	JAVA_HOME=$(JAVA) $(BIN)/python -m evenq.cli.demo

# Two at a time: what looks at the code has one thread each, and the test cluster mostly waits (probes, rollouts, three
# minutes without a restart); the longest first, and last what fits beside each other.
check: dev ## release | all that CI runs, nothing left out
	$(MAKE) -j2 --output-sync=target lint type arch tidy audit sbom spec
	$(MAKE) test helm EVENQ_TEST_ALL=1
	$(MAKE) -j2 --output-sync=target kubernetes-and-walks spark short-chaos compat docs grpcio-front

clean: ## start | remove what make made
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache dist build .demo
