# Every target works on a fresh clone: it makes .venv, installs the locked packages and gets the
# control plane's binaries by itself. Nothing is installed outside .venv and the user's cache folder.

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed
UV     := uv==0.13.7
# What `make run` keeps the cluster equal to: a folder of fleet files, or one file.
FLEETS ?= fleets/quickstart.yaml
# What builds images, and the name of ours.
BUILDER ?= buildah
VERSION := $(shell sed -n 's/^__version__ = "\(.*\)"/\1/p' kwokfleet/__init__.py)
IMAGE   ?= ghcr.io/kwokfleet/kwokfleet:$(VERSION)

.DEFAULT_GOAL := help
.PHONY: help setup run down test coverage faults image image-test soak lint format manifests golden bench mcad lock clean

help:  ## this list
	@awk -F':.*## ' '/^[a-z-]+:.*## /{printf "  make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

$(STAMP): requirements/dev.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "error: $(PYTHON) cannot be run or is older than 3.11; run: make PYTHON=/path/to/python3.11 $(MAKECMDGOALS)" >&2; exit 6; }
	@$(PYTHON) -m venv $(VENV) || { \
	  echo "error: $(PYTHON) cannot make a virtual environment; on Debian: apt install python3-venv" >&2; exit 6; }
	$(BIN)/pip install --quiet --disable-pip-version-check --require-hashes -r requirements/dev.lock
	$(BIN)/pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	@$(BIN)/python -m compileall -q kwokfleet
	@touch $@

setup: $(STAMP)  ## .venv with the locked packages, and the control plane's binaries
	$(BIN)/kwokfleet cluster binaries

run: $(STAMP)  ## a real cluster, kept equal to FLEETS until Ctrl-C; the cluster stays
	$(BIN)/kwokfleet up $(FLEETS)

down: $(STAMP)  ## stop and remove the cluster of `make run`
	$(BIN)/kwokfleet cluster down

test: $(STAMP)  ## every test, against a real control plane
	$(BIN)/kwokfleet cluster binaries
	$(BIN)/python -m tests.tools
	$(BIN)/python -m tests

# Without a control plane by default: ALL=1 measures what `make test` runs.
coverage: $(STAMP)  ## lines and branches that tests run, as text and HTML in build/coverage; ALL=1: with a cluster
	rm -rf build/coverage
	mkdir -p build/coverage
	$(if $(ALL),$(BIN)/kwokfleet cluster binaries)
	$(BIN)/python -m tests.tools
	$(BIN)/coverage run -m $(if $(ALL),tests,pytest -q -m "not cluster")
	$(BIN)/coverage combine --quiet
	$(BIN)/coverage html --quiet
	$(BIN)/coverage report > build/coverage/report.txt
	@grep ^TOTAL build/coverage/report.txt

faults: $(STAMP)  ## what sync does when connections, servers or sync itself die: minutes
	$(BIN)/kwokfleet cluster binaries
	$(BIN)/pytest -m faults

image:  ## the container image; BUILDER=podman or docker, IMAGE=its name, BUILD_OPTIONS=more
	BUILDAH_FORMAT=docker $(BUILDER) build --file Containerfile --tag $(IMAGE) --build-arg VERSION=$(VERSION) \
	  --build-arg REVISION=$$(git rev-parse HEAD) $(BUILD_OPTIONS) .

image-test: $(STAMP)  ## build the image with buildah and run it against a real control plane: minutes, at first
	$(BIN)/kwokfleet cluster binaries
	$(BIN)/pytest -m image --timeout 1800 tests/image

soak: $(STAMP)  ## an hour of operation in minutes, and nothing may leak: MINUTES=10
	$(BIN)/kwokfleet cluster binaries
	$(BIN)/python -m tests.soak --minutes $(or $(MINUTES),10)

lint: $(STAMP)  ## ruff, mypy and import-linter
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache

format: $(STAMP)  ## let ruff mend what it can
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

manifests: $(STAMP)  ## render deploy/bundle, and copy the chart's files from deploy/
	$(BIN)/python deploy/render.py

golden: $(STAMP)  ## write the golden files anew; read the diff before you commit it
	$(BIN)/python -m tests.tools
	$(BIN)/pytest tests/golden --update-golden

bench: $(STAMP)  ## benchmarks with their peers in the same run: tables, and JSON under build/bench
	$(BIN)/kwokfleet cluster binaries
	$(BIN)/python -m tests.bench

mcad: $(STAMP)  ## MCAD's stress table, published and measured side by side: 5 minutes
	$(BIN)/kwokfleet cluster binaries
	$(BIN)/python -m tests.bench mcad

lock: $(STAMP)  ## resolve pyproject.toml anew into requirements/*.lock (UPGRADE=1: newest versions)
	$(BIN)/pip install --quiet --disable-pip-version-check $(UV)
	$(BIN)/uv pip compile $(LOCK) -o requirements/runtime.lock
	$(BIN)/uv pip compile $(LOCK) --extra dev --constraint requirements/runtime.lock -o requirements/dev.lock
	echo hatchling | $(BIN)/uv pip compile $(LOCK_OPTIONS) --constraint requirements/dev.lock -o requirements/build.lock -

# Hashes yes, index addresses no: the lock must work behind anybody's index.
LOCK_OPTIONS = --quiet $(if $(UPGRADE),--upgrade) --universal --python-version 3.11 --generate-hashes \
  --no-emit-index-url --no-emit-find-links --no-annotate --custom-compile-command 'make lock'
LOCK = $(LOCK_OPTIONS) pyproject.toml

clean:  ## remove .venv and build output; the cache of binaries stays
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache
