# What people type. Everything here works on a fresh Debian machine with only Rust, and on macOS.

CARGO ?= cargo

.PHONY: dev test check lint deny bench bench-peers mutants soak chaos conformance fuzz hostile schema redis

dev: redis ## Run the whole relay on a private Redis and watch a message go through
	$(CARGO) run -p lisa-manager -- dev --demo

test: redis ## Run all tests on a private Redis
	$(CARGO) build --workspace --bins
	LISA_TEST_BIN_DIR=$(CURDIR)/target/debug $(CARGO) test --workspace --no-fail-fast

check: lint test ## What must pass before a commit that matters

lint: ## Format, clippy and docs, without warnings
	$(CARGO) fmt --all --check
	$(CARGO) clippy --workspace --all-targets -- -D warnings
	RUSTDOCFLAGS="-D warnings" $(CARGO) doc --workspace --no-deps --quiet

deny: ## Licences, bans and sources of the dependencies; advisories where their database can be fetched
	@command -v cargo-deny >/dev/null || $(CARGO) install cargo-deny --locked --version 0.20.2
	$(CARGO) deny check bans licenses sources
	CARGO="$(CARGO)" bash tests/advisories.sh

bench: redis ## What this machine relays, beside what its Redis can do: ARGS="--quick", "--list", "--only throughput"
	$(CARGO) bench -p lisa-tests --bench relay -- $(ARGS)

bench-peers: redis ## The same work on BullMQ, apalis, beanstalkd, streaq, arq and celery: ARGS="--quick", "--list", "--only bullmq"
	$(CARGO) bench -p lisa-tests --bench peers -- $(ARGS)

chaos: redis ## The real binaries under load, hit by faults at random: ARGS="--quick", "--list", "--only redis-kill", "--seed 7"
	$(CARGO) build --release --workspace --bins
	$(CARGO) run --release -p lisa-tests --bin chaos -- $(ARGS)

mutants: redis ## Plant bugs in the scripts and see the model test catch them
	bash tests/mutants.sh

soak: redis ## The model test for an hour, the seed of each run printed: MINUTES=600 for longer
	LISA_MODEL_MINUTES=$(or $(MINUTES),60) $(CARGO) test -p lisa-tests --test it -- model:: reshard::random --nocapture

conformance: redis ## The scenarios on each way to run Redis, as a table: ARGS="--quick", "redis-8", "sentinel cluster"
	bash tests/conformance.sh $(ARGS)

fuzz: ## Feed every reader with mutated input, a minute each: ARGS="config 600" for one target and its seconds
	bash tests/fuzz/run.sh $(ARGS)

hostile: redis ## All that strangers do to the listeners, with the long forms
	$(CARGO) build --workspace --bins
	LISA_TEST_BIN_DIR=$(CURDIR)/target/debug $(CARGO) test -p lisa-tests --test it hostile -- --include-ignored --nocapture

schema: redis ## Hold both /openapi.json against the running programs with schemathesis: ARGS="-n 500"
	$(CARGO) build --workspace --bins
	LISA_TEST_BIN_DIR=$(CURDIR)/target/debug bash tests/schema/run.sh $(ARGS)

redis: ## Install a Redis server with the system's package manager if there is none
	@bash tests/install-redis.sh
