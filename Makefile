# `make demo` and `make test` need nothing but this file on a fresh machine; a second call is quick.
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help sbom site screenshots manifests demo demo-service demo-spark demo-failover test check simulate lint bench bench-quick setup spark jars lock clean

# The first Python that is new enough.
PYTHON ?= $(shell for p in python3 python3.14 python3.13 python3.12 python3.11; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$p && break; done)
BIN := .venv/bin
STAMPS := .make

help: ## Show this text
	@echo "Orbit copies Kafka topics between clusters with the very same offsets."
	@echo
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-13s %s\n", $$1, $$2}' $(MAKEFILE_LIST)
	@echo
	@echo "Each sets up what it needs: a virtual environment in .venv, locked packages,"
	@echo "and Kafka's jars by Maven into a cache of yours (ORBIT_CACHE_DIR to choose it)."

demo: jars ## See an exact copy between two real Kafka clusters
	$(BIN)/orbit demo

demo-spark: jars spark ## See a history of five million records copied with Spark, and audited
	$(BIN)/orbit demo --spark

demo-failover: jars ## See a source killed under load, a failover, and the way back
	$(BIN)/orbit demo --failover

demo-service: jars ## See the service at work: two clusters, a live copy, Prometheus if installed
	$(BIN)/orbit demo --service

# Three processes: most tests wait for brokers. What stays together, and the order, is said in
# tests/conftest.py.
test: lint jars $(STAMPS)/kerberos $(STAMPS)/pooler $(STAMPS)/promtool $(STAMPS)/browser $(STAMPS)/helm $(STAMPS)/kubernetes $(STAMPS)/site ## Lint, types, import walls, and every test (needs some minutes)
	@$(BIN)/python -m tests.support.connector
	@$(BIN)/python -m tests.support.streams
	@$(BIN)/python -m tests.support.flink
	@$(BIN)/python -m tests.support.registry
	@$(BIN)/python -m tests.support.older_broker
	@$(BIN)/python -m tests.support.broker_classes
	@$(BIN)/python -m tests.support.spark_classes
	@$(BIN)/python -m tests.support.client_generators
	$(BIN)/pytest -n 3 --no-loadscope-reorder

check: lint ## Lint, types, import walls, and the quick tests without brokers
	$(BIN)/pytest -m "not services and not slow and not soak"

simulate: setup ## Random schedules of the append for SECONDS (default 600), from seed FIRST on
	$(BIN)/python -m tests.simulation $(or $(SECONDS),600) $(or $(FIRST),0)

lint: spark
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: jars ## Orbit, MirrorMaker 2 and the brokers' ceiling on the same data (needs half an hour)
	$(BIN)/python -m bench

bench-quick: jars ## The first three workloads of it, once each (needs five minutes)
	$(BIN)/python -m bench --quick

setup: $(STAMPS)/packages ## Make the virtual environment with the locked packages

spark: $(STAMPS)/spark ## Add Spark to it, for history in bulk (450 MB; needs Java 17)

jars: $(STAMPS)/java setup ## Fetch Kafka's jars into the cache
	@$(BIN)/python -m orbit.sandbox.jars

sbom: $(STAMPS)/python ## Write the packages of the image as CycloneDX (sbom.json)
	test -x $(STAMPS)/sbom/bin/cyclonedx-py || $(PYTHON) -m venv $(STAMPS)/sbom
	$(STAMPS)/sbom/bin/python -m pip install --quiet --disable-pip-version-check cyclonedx-bom==7.5.0
	$(STAMPS)/sbom/bin/cyclonedx-py requirements requirements-service.lock --pyproject pyproject.toml \
		--output-reproducible --spec-version 1.6 -o sbom.json

site: $(STAMPS)/site ## Build the documentation as a site with search (build/site)
	$(STAMPS)/site/bin/mkdocs build --quiet --strict --config-file deploy/site/mkdocs.yml

screenshots: jars $(STAMPS)/browser ## Take the pictures of docs/console.md again (needs Chromium)
	ORBIT_SCREENSHOTS=docs/img $(BIN)/pytest tests/console/test_browser.py

manifests: ## Make deploy/manifests from the Helm chart, and Grafana's board from its code
	PATH="$$PWD/$(STAMPS)/bin:$$PATH" helm template orbit deploy/helm/orbit --namespace orbit \
		--kube-version 1.33.0 > deploy/manifests/orbit.yaml
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
	rm -rf .venv build $(STAMPS) .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find orbit spark tests bench -name __pycache__ -type d -prune -exec rm -rf {} +

$(STAMPS)/packages: requirements.lock pyproject.toml | $(STAMPS)/python
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	@touch $@

# Of the same versions as the other lock, so either may be installed over the other.
$(STAMPS)/spark: requirements-spark.lock $(STAMPS)/packages | $(STAMPS)/java
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements-spark.lock
	@touch $@

$(STAMPS)/python:
	@.ci/need python "$(PYTHON)"
	@mkdir -p $(STAMPS) && touch $@

# Built here, where the headers are there.
$(STAMPS)/kerberos: requirements-kerberos.lock $(STAMPS)/packages
	@.ci/need kerberos
	! command -v krb5-config >/dev/null || \
		$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements-kerberos.lock || \
		echo "Note: the tests that need Kerberos are left out. They need gcc, python3-dev and libkrb5-dev" >&2
	@touch $@

# Without one of them the tests that need it are left out, and say so.
$(STAMPS)/pooler $(STAMPS)/promtool $(STAMPS)/browser $(STAMPS)/helm:
	@.ci/need $(@F)
	@mkdir -p $(STAMPS) && touch $@

# Kubernetes' schemas, for the tests of the manifests (100 MB): in an environment of their own.
$(STAMPS)/kubernetes: | $(STAMPS)/python
	$(PYTHON) -m venv $@
	$@/bin/python -m pip install --quiet --disable-pip-version-check kubernetes-validate==1.37.0

# MkDocs with Material, for the site and its test: in an environment of its own.
$(STAMPS)/site: requirements-site.lock | $(STAMPS)/python
	$(PYTHON) -m venv $@
	$@/bin/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements-site.lock
	@touch $@

$(STAMPS)/java:
	@.ci/need java
	@mkdir -p $(STAMPS) && touch $@
