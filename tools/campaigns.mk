# Long runs and rare ones: simulations, kills, broken links, benchmarks, other versions. `make campaigns` lists them.
.PHONY: bench bench-attacks bench-connections bench-delivery bench-nats bench-peers bench-rebalance bench-replication bench-replication-peers bench-spark bench-spark-idle bench-store bench-tls chaos crowd fuzz-front kill-loop kubernetes-replicated live live-kills members oldest plain-sends properties replication-faults replication-kills replication-model replication-model-search replication-upgrade shuffled sim sim-mutants sim-replicated spark-chaos spark-group spark-oldest spark-refused storage verify verify-replicated

plain-sends: dev ## test | compare the parsers of SendMessage and Publish, the compiled one with attacks too, and both packers: make plain-sends COUNT=1000000 SEED=1
	$(BIN)/python tests/unit/evenq_broker/core/sending/plain_requests.py --count $(or $(COUNT),1000000) --seed $(or $(SEED),1)
	$(BIN)/python tests/unit/evenq/store/log/packed_calls.py --count $(or $(COUNT),1000000) --seed $(or $(SEED),1)

fuzz-front: dev ## test | hostile input for the HTTP/2 core: make fuzz-front COUNT=10000000 SEED=1; 5 minutes on two cores
	$(BIN)/python tests/unit/evenq/serving/http2/hostile_input.py --count $(or $(COUNT),10000000) --seed $(or $(SEED),1) --processes 2

sim: dev ## test | simulate the cluster in virtual time: make sim SEEDS=10000 FIRST=0, or PLANT=drain|fence|ids|leave; FIRST=2000000 simulates life cycles
	$(BIN)/python tests/sim/run.py --seeds $(or $(SEEDS),1000) --first $(or $(FIRST),0) $(if $(PLANT),--plant $(PLANT))

sim-replicated: dev ## test | simulate three copies with failing disks and links: make sim-replicated SEEDS=2000 FIRST=0, or PLANT=5663; FIRST=10000000 has transactions
	$(BIN)/python tests/sim/run_replicated.py --seeds $(or $(SEEDS),2000) --first $(or $(FIRST),0) $(if $(PLANT),--plant "$(PLANT)")

sim-mutants: dev ## test | check that this simulation finds faults: plants each known fault and breaks each rule in turn, fails if one is not found
	$(BIN)/python tests/sim/run_replicated.py --mutants $(if $(SEEDS),--seeds $(SEEDS))

replication-model: dev ## test | random walks of the replication model: make replication-model WALKS=100000 SEED=0
	$(BIN)/python tests/sim/run_replication.py --mixed --walks $(or $(WALKS),100000) --seed $(or $(SEED),0) $(if $(JOBS),--jobs $(JOBS))

replication-model-search: dev ## test | every order of events in small cases of the model: make replication-model-search STATES=2000000; 2 minutes of one core
	$(BIN)/python tests/sim/run_replication.py --search --states $(or $(STATES),2000000)

properties: dev ## test | draw new examples for all property tests: make properties EXAMPLES=2000
	EVENQ_TEST_EXAMPLES=$(or $(EXAMPLES),2000) $(BIN)/pytest -q -n auto --dist worksteal $$(grep -rl "from hypothesis" tests/unit tests/spec tests/storage)

shuffled: dev ## test | run test files, and the tests in each, in random order: make shuffled SEED=1 ON=tests/integration
	$(BIN)/pytest -q -n 4 --dist loadfile --no-loadscope-reorder --shuffle=$(or $(SEED),1) $(or $(ON),tests/integration)

chaos: dev ## break things | kill -9 brokers while a checker verifies all messages: make chaos ROUNDS=20
	EVENQ_TEST_RECOVERY_MS=30000 EVENQ_TEST_ROUNDS=$(or $(ROUNDS),20) $(BIN)/pytest -q tests/chaos

crowd: dev ## test | 10,000 clients that connect at the same time and vanish, with figures; 2 minutes
	EVENQ_TEST_SCALE=full $(BIN)/pytest -q tests/integration/test_hostile_clients.py -k vanish_by_the_thousand
	EVENQ_TEST_SCALE=full $(BIN)/pytest -q --log-cli-level=INFO tests/integration/test_hostile_clients.py -k connections_that_come

storage: dev ## test | crash, truncate, corrupt and fail the store in every way, at full size; 30 minutes
	$(BIN)/python tests/proofs/run.py storage --ledger tests/storage/ledger.md
	EVENQ_TEST_SCALE=full $(BIN)/pytest -q -n auto tests/storage/test_stateful.py

kill-loop: dev ## break things | kill -9 the store and the broker repeatedly: make kill-loop CYCLES=1000
	$(BIN)/python tests/proofs/run.py kill_loop --cycles $(or $(CYCLES),1000) --flush sync --hits-min 5 --ledger tests/chaos/ledger.md
	$(BIN)/python tests/proofs/run.py kill_loop --cycles $(or $(CYCLES),1000) --flush async --hits-min 5 --ledger tests/chaos/ledger.md

verify-replicated: dev ## break things | evenq verify and all kinds of members on three copies, whose leaders are killed, stopped and moved every 20 s: make verify-replicated MINUTES=10
	EVENQ_TEST_TOLERANCE_MS=5000 EVENQ_TEST_KILL_SECONDS=20 EVENQ_TEST_ROUNDS=$$(( 3 * $(or $(MINUTES),10) )) $(BIN)/pytest -q -s tests/chaos/test_replicated_verify.py tests/chaos/test_readers_keep_reading.py

replication-faults: dev ## break things | every shape of broken links between three copies: make replication-faults SECONDS=180 SEED=1 RECORD=etcd; that time for each of 15 shapes (etcd: 19)
	$(BIN)/python tests/proofs/run.py group_faults links --record $(or $(RECORD),lease) --seconds $(or $(SECONDS),180) --seed $(or $(SEED),1) --ledger tests/chaos/group_ledger.md

replication-kills: dev ## break things | kill -9 leaders, followers and the server of the group record, also at failpoints: make replication-kills CYCLES=1000 SEED=1 RECORD=etcd
	$(BIN)/python tests/proofs/run.py group_faults kills --cycles $(or $(CYCLES),1000) --mode sync --record $(or $(RECORD),lease) --seed $(or $(SEED),1) --ledger tests/chaos/group_ledger.md
	$(BIN)/python tests/proofs/run.py group_faults kills --cycles $(or $(CYCLES),1000) --mode memory --record $(or $(RECORD),lease) --seed $(or $(SEED),1) --ledger tests/chaos/group_ledger.md

replication-upgrade: dev ## break things | replace three copies one by one under load, to this version and back: make replication-upgrade ROUNDS=20 FROM=v0.1.0
	$(BIN)/python tests/proofs/run.py rolling_upgrade --rounds $(or $(ROUNDS),20) $(if $(FROM),--from $(FROM)) --ledger tests/chaos/upgrade_ledger.md

members: dev ## break things | members of the Go, Java and Python SDKs start, close and are killed while brokers restart: make members MINUTES=15 STOPS=14 SDKS=go,java,python
	$(BIN)/python tests/proofs/run.py members --minutes $(or $(MINUTES),15) $(if $(STOPS),--stops $(STOPS)) $(if $(SDKS),--sdks $(SDKS))

verify: dev ## break things | evenq verify while a broker is killed every 30 s: make verify MINUTES=10
	EVENQ_TEST_TOLERANCE_MS=5000 EVENQ_TEST_KILL_SECONDS=30 EVENQ_TEST_ROUNDS=$$(( 2 * $(or $(MINUTES),10) )) $(BIN)/pytest -q -s tests/chaos/test_verify.py

live: dev ## break things | groups grow, shrink and restart under 2,000 messages/s: make live RATE=2000 MEMBERS=8
	EVENQ_TEST_RECOVERY_MS=30000 EVENQ_TEST_RATE=$(or $(RATE),2000) EVENQ_TEST_MEMBERS=$(or $(MEMBERS),8) EVENQ_TEST_REST_MS=$(or $(REST_MS),250) EVENQ_TEST_SDK_RATE=$(or $(SDK_RATE),2000) $(BIN)/pytest -q -s tests/live/test_changes.py

live-kills: dev ## break things | kill -9 members, brokers and rebalancers in turn under load: make live-kills MINUTES=10
	EVENQ_TEST_RATE=$(or $(RATE),2000) EVENQ_TEST_MINUTES=$(or $(MINUTES),10) EVENQ_TEST_SLACK_MS=4000 $(BIN)/pytest -q -s tests/live/test_kills.py

kubernetes-replicated: dev ## break things | three copies on a real one-node Kubernetes under two SDKs, with lost leaders and volumes, rollouts, and no API server: make kubernetes-replicated LOSSES=10 RATE=500
	EVENQ_TEST_LOAD_RATE=$(or $(RATE),500) EVENQ_TEST_LOSSES=$(or $(LOSSES),10) EVENQ_TEST_API_AWAY_SECONDS=60 EVENQ_TEST_QUIET_SECONDS=$(or $(QUIET),600) EVENQ_TEST_FAILOVER_SECONDS=10 EVENQ_TEST_ALL_AWAY_SECONDS=12 $(BIN)/pytest -q -s tests/helm/test_replicated_kubernetes.py

# Wheels of other versions; PYTHONPATH puts them before those of .venv.
build/%/.ready:
	rm -rf $(@D) && $(BIN)/python -m pip install --quiet --no-deps --target $(@D) $(subst +, ,$(subst _,==,$*))
	@touch $@

# The lower bounds of pyproject.toml; tests/unit/tools/test_lock.py compares them.
OLDEST := protobuf_6.33.0+grpcio_1.76.0+pyarrow_18.0.0+numpy_1.26.0+crc32c_2.7+prometheus-client_0.21.0
oldest: dev build/$(OLDEST)/.ready ## test with others | stubs, SDK and Spark source with the oldest supported protobuf, grpcio, pyarrow and numpy
	PYTHONPATH=build/$(OLDEST) $(BIN)/pytest -q tests/unit/pyspark_evenq tests/unit/evenq/wire tests/unit/evenq/client

spark-oldest: dev build/pyspark_4.2.0/.ready ## test with others | the Spark source and sink with the oldest supported PySpark (480 MB)
	PYTHONPATH=build/pyspark_4.2.0 $(BIN)/pytest -q tests/unit/pyspark_evenq
	JAVA_HOME=$(JAVA) PYTHONPATH=build/pyspark_4.2.0 $(BIN)/pytest -q tests/spark/test_batch.py tests/spark/test_stream.py tests/spark/test_14_sink.py tests/spark/test_16_places.py

spark-refused: dev build/pyspark_4.1.1/.ready ## test with others | the error of a PySpark that is too old (450 MB)
	JAVA_HOME=$(JAVA) PYTHONPATH=build/pyspark_4.1.1 $(BIN)/pytest -q tests/spark/test_old_spark.py

spark-chaos: dev ## test with others | kill -9 every part of two Spark queries, and the brokers: make spark-chaos ROUNDS=50 ONLY=broker
	JAVA_HOME=$(JAVA) EVENQ_TEST_ROUNDS=$(or $(ROUNDS),50) EVENQ_TEST_EXECUTORS=2 EVENQ_TEST_RATE=$(or $(RATE),150) EVENQ_TEST_ONLY="$(ONLY)" $(BIN)/pytest -q -s tests/spark/test_01_kill_loop.py

spark-group: dev ## test with others | two Spark jobs and two consumers share a group, and one starts or stops each second: make spark-group FOR=60 RATE=200
	JAVA_HOME=$(JAVA) EVENQ_TEST_SECONDS=$(or $(FOR),60) EVENQ_TEST_RATE=$(or $(RATE),200) $(BIN)/pytest -q -s tests/spark/test_06_group.py

bench: dev ## measure | evenq beside its floor (the same server without work), in one run
	$(BIN)/python benchmarks/run.py

bench-store: dev ## measure | the store alone, beside floors and other systems; 30 minutes
	$(BIN)/python benchmarks/store.py

bench-delivery: dev ## measure | every kind and call of a delivery beside its floor; 10 minutes
	$(BIN)/python benchmarks/delivery.py

bench-rebalance: dev ## measure | time without an owner for queues while 100 members of 1,000 queues change; 10 minutes
	$(BIN)/python benchmarks/rebalance.py

bench-peers: dev ## measure | beside Apache RocketMQ with its own protocol: make bench-peers ROUNDS=5; downloads its jars, needs Java and Go
	$(BIN)/python benchmarks/peers.py --rounds $(or $(ROUNDS),5)

bench-tls: dev ## measure | the loads of bench-peers without TLS, with TLS, and with mTLS: make bench-tls ROUNDS=5; needs Go, 10 minutes
	$(BIN)/python benchmarks/transports.py --rounds $(or $(ROUNDS),5)

bench-connections: dev ## measure | 10,000 waiting clients, each with a stream and a poll: make bench-connections CONNECTIONS=10000; 5 minutes
	$(BIN)/python benchmarks/connections.py --connections $(or $(CONNECTIONS),10000)

bench-attacks: dev ## measure | a normal client beside attackers, at a gRPC server and at evenq: make bench-attacks FOR=10; 8 minutes
	$(BIN)/python benchmarks/attacks.py --seconds $(or $(FOR),10)

bench-nats: dev ## measure | protocol and SDK beside NATS JetStream: make bench-nats ROUNDS=5; builds its server, needs Go, 7 minutes
	$(BIN)/python benchmarks/jetstream.py --rounds $(or $(ROUNDS),5)

bench-replication: dev ## measure | three copies beside one with the same flush, catch-up, pauses: make bench-replication ROUNDS=5; needs Go, 10 minutes
	$(BIN)/python benchmarks/replication.py --rounds $(or $(ROUNDS),5)

bench-replication-peers: dev ## measure | three copies beside RocketMQ's SYNC_MASTER with two slaves: make bench-replication-peers ROUNDS=5; needs Java, Maven, Go and 8 GB
	$(BIN)/python benchmarks/replication_peers.py --rounds $(or $(ROUNDS),5)

bench-spark: dev ## measure | Spark reads from evenq, from Kafka and from a source without data in turn: make bench-spark ROWS=400000 ROUNDS=5
	JAVA_HOME=$(JAVA) $(BIN)/python benchmarks/spark.py --rows $(or $(ROWS),400000) --rounds $(or $(ROUNDS),5)

bench-spark-idle: dev ## measure | cost of a Spark query without data, in calls and CPU; 1 minute
	JAVA_HOME=$(JAVA) $(BIN)/python benchmarks/spark.py --only idle --no-kafka --rows 1000
