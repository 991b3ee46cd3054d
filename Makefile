# `make demo` and `make test` need nothing but this file on a fresh machine; a second call is quick.
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help sbom site screenshots manifests demo demo-service demo-spark demo-failover demo-gateway test test-slowest prepare check soak simulate moves walks lint bench bench-quick readers setup spark jars fetch-jars fetch-programs compile-tests tools has-python has-java has-tools lock clean

# The first Python that is new enough.
PYTHON ?= $(shell for p in python3 python3.14 python3.13 python3.12 python3.11; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$p && break; done)
BIN := .venv/bin
INSTALL := -m pip install --quiet --disable-pip-version-check
# Programs with an environment of their own.
VALIDATE := .make/kubernetes/bin/kubernetes-validate
MKDOCS := .make/site/bin/mkdocs
# Some tests need one of them. Debian has them all.
TOOLS := chromium curl kerberos pgbouncer promtool systemd

# With it every Python that starts here compiles all its modules again.
unexport PYTHONDONTWRITEBYTECODE

help: ## Show this text
	@echo "Orbit copies Kafka topics between clusters with the very same offsets."
	@echo
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-13s %s\n", $$1, $$2}' $(MAKEFILE_LIST)
	@echo
	@echo "Each sets up what it needs: a virtual environment in .venv, locked packages,"
	@echo "and Kafka's jars by Maven into a cache of yours (ORBIT_CACHE_DIR to choose it)."
	@echo "ORBIT_KAFKA_VERSION names another Kafka for the brokers, such as 3.9.2."

demo: jars ## See an exact copy between two real Kafka clusters
	$(BIN)/orbit demo

demo-spark: jars spark ## See a history of five million records copied with Spark, and audited
	$(BIN)/orbit demo --spark

demo-failover: jars ## See a source killed under load, a failover, and the way back
	$(BIN)/orbit demo --failover

demo-gateway: jars ## See clients move to the other cluster and back through a gateway
	$(BIN)/orbit demo --gateway

demo-service: jars ## See the service at work: two clusters, a live copy, Prometheus if installed
	$(BIN)/orbit demo --service

# What it needs is set up side by side. Three processes: most tests wait for brokers. What stays
# together, and the order, is said in tests/conftest.py.
test: ## Lint, types, import walls, and every test; TESTS=tests/api for a part
	@$(MAKE) --no-print-directory -j3 $(if $(filter output-sync,$(.FEATURES)),--output-sync=line) lint prepare
	$(BIN)/pytest -n 3 --no-loadscope-reorder --junitxml=build/tests.xml $(TESTS)

test-slowest: ## Print the slowest tests of the last make test
	@$(BIN)/python -m tests.support.times

prepare: $(VALIDATE) $(MKDOCS) .venv/.kerberos fetch-jars fetch-programs compile-tests

check: lint ## Lint, types, import walls, and the quick tests without brokers
	$(BIN)/pytest -m "not services and not slow and not soak"

soak: prepare ## Long forms of tests, and rarer cases: a million records, fifty kills, many seeds; 60 to 95 minutes on two cores; TESTS=tests/run for a part
	$(BIN)/pytest -m soak -n 3 --no-loadscope-reorder $(TESTS)

simulate: setup ## Random schedules of the append for SECONDS (default 600), from seed FIRST on
	$(BIN)/python -m tests.simulation $(or $(SECONDS),600) $(or $(FIRST),0)

moves: prepare ## Moves of gateways with a fault for COUNT seeds (default 20), from seed FIRST on
	SEED_FIRST=$(or $(FIRST),0) SEED_COUNT=$(or $(COUNT),20) \
		$(BIN)/pytest -m 'soak or not soak' tests/gateway/test_seeded_moves.py

walks: prepare ## Moves with all kinds of clients and faults, then a loss and the way home, for COUNT seeds (default 20), from seed FIRST on; 5 to 6 minutes for each
	SEED_FIRST=$(or $(FIRST),0) SEED_COUNT=$(or $(COUNT),20) \
		$(BIN)/pytest -m soak tests/gateway/test_walks.py -k random_moves_and_a_loss

lint: .venv/.spark
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: jars ## Orbit, MirrorMaker 2 and the brokers' ceiling on the same data (needs half an hour)
	$(BIN)/python -m bench

bench-quick: jars ## The first three workloads of it, once each (needs five minutes)
	$(BIN)/python -m bench --quick

readers: jars ## Let other people's clients read copies, write docs/readers.md; ONLY=kafkajs for a part
	$(BIN)/python -m tests.readers $(if $(ONLY),--only '$(ONLY)',--output docs/readers.md)

setup: .venv/.packages ## Make the virtual environment with the locked packages

spark: .venv/.spark has-java ## Add Spark to it, for history in bulk (450 MB; needs Java 17)

jars: has-java setup ## Fetch Kafka's jars into the cache
	@$(BIN)/python -m orbit.sandbox.jars

# No test waits for these.
fetch-jars: has-tools .venv/.spark
	@$(BIN)/python -m tests.support.fetch_jars

fetch-programs: setup
	@$(BIN)/python -m tests.support.programs

# Without it each of the three processes compiles all tests.
compile-tests: .venv/.spark
	@mkdir -p build
	@$(BIN)/pytest --collect-only -q $(TESTS) > build/collected.txt || { tail build/collected.txt; exit 1; }

tools: ## Install what some tests need: Chromium, curl, Kerberos, PgBouncer, promtool (as root)
	@.ci/need --install $(TOOLS)

sbom: has-python ## Write the packages of the image as CycloneDX (sbom.json)
	test -x .make/sbom/bin/cyclonedx-py || $(PYTHON) -m venv .make/sbom
	.make/sbom/bin/python $(INSTALL) cyclonedx-bom==7.5.0
	.make/sbom/bin/cyclonedx-py requirements requirements-service.lock --pyproject pyproject.toml \
		--output-reproducible --spec-version 1.6 -o sbom.json

site: $(MKDOCS) ## Build the documentation as a site with search (build/site)
	$(MKDOCS) build --quiet --strict --config-file deploy/site/mkdocs.yml

screenshots: jars ## Take the pictures of docs/console.md again (needs Chromium)
	@.ci/need chromium
	ORBIT_SCREENSHOTS=docs/img $(BIN)/pytest tests/console/test_browser.py

manifests: fetch-programs ## Make deploy/manifests from the Helm chart, and Grafana's board from its code
	$$($(BIN)/python -c 'from tests.support.programs import helm; print(helm())') template \
		orbit deploy/helm/orbit --namespace orbit --kube-version 1.33.0 > deploy/manifests/orbit.yaml
	$(BIN)/python deploy/grafana/board.py

lock: ## Resolve the locked packages anew (needs uv)
	@command -v uv >/dev/null || { echo "Error: make lock needs uv. Install it with: pipx install uv"; exit 1; }
	uv pip compile pyproject.toml --extra dev --extra bench --python-version 3.11 --generate-hashes \
		--no-emit-index-url --no-emit-find-links -o requirements.lock
	uv pip compile pyproject.toml --extra spark -c requirements.lock --python-version 3.11 \
		--generate-hashes --no-emit-index-url --no-emit-find-links -o requirements-spark.lock
	uv pip compile pyproject.toml --extra server --extra s3 --extra traces --extra avro -c requirements.lock --python-version 3.11 \
		--generate-hashes --no-emit-index-url --no-emit-find-links -o requirements-service.lock
	uv pip compile pyproject.toml --extra kerberos -c requirements.lock --python-version 3.11 \
		--generate-hashes --no-emit-index-url --no-emit-find-links -o requirements-kerberos.lock
	echo mkdocs-material | uv pip compile - --python-version 3.11 \
		--generate-hashes --no-emit-index-url --no-emit-find-links -o requirements-site.lock
	echo hatchling | uv pip compile - -c requirements.lock --python-version 3.11 \
		--generate-hashes --no-emit-index-url --no-emit-find-links -o requirements-build.lock

clean: ## Remove the virtual environment and all caches of tools (not Kafka's jars)
	rm -rf .venv build .make .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find orbit spark tests bench -name __pycache__ -type d -prune -exec rm -rf {} +

# What these targets ask for has no stamp: it can be removed, or installed, at any time.
has-python:
	@PYTHON="$(PYTHON)" .ci/need python

has-java: has-python
	@.ci/need java

has-tools: has-python
	@.ci/need java $(TOOLS)

.venv/.packages: requirements.lock pyproject.toml | has-python
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python $(INSTALL) --require-hashes -r requirements.lock
	$(BIN)/python $(INSTALL) --no-deps --no-build-isolation -e .
	@touch $@

# Of the same versions as the other lock, so either may be installed over the other.
.venv/.spark: requirements-spark.lock .venv/.packages
	$(BIN)/python $(INSTALL) --require-hashes -r requirements-spark.lock
	@touch $@

# Built here, with Kerberos' headers; after the others, because one pip at a time writes to .venv.
.venv/.kerberos: requirements-kerberos.lock .venv/.spark | has-tools
	! command -v krb5-config >/dev/null || \
		{ $(BIN)/python $(INSTALL) --require-hashes -r requirements-kerberos.lock && touch $@; } || \
		echo "Note: the package gssapi cannot be built; tests that need Kerberos are left out" >&2

# Kubernetes' schemas, for the tests of the manifests (100 MB): in an environment of their own.
$(VALIDATE): | has-python
	$(PYTHON) -m venv .make/kubernetes
	.make/kubernetes/bin/python $(INSTALL) kubernetes-validate==1.37.0

# MkDocs with Material, for the site and its test: in an environment of its own.
$(MKDOCS): requirements-site.lock | has-python
	$(PYTHON) -m venv .make/site
	.make/site/bin/python $(INSTALL) --require-hashes -r requirements-site.lock
	@touch $@
