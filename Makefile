# Every target works on a fresh clone: it creates .venv, installs the locked packages and gets the
# control plane's binaries. Nothing is installed outside .venv and the user's cache folder.

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed
UV     := uv==0.13.7
# Fleet files of `make run`: a folder or a file.
FLEETS ?= fleets/quickstart.yaml
# Image builder and image name.
BUILDER ?= buildah
VERSION := $(shell sed -n 's/^__version__ = "\(.*\)"/\1/p' kwokfleet/__init__.py)
IMAGE   ?= ghcr.io/kwokfleet/kwokfleet:$(VERSION)

.DEFAULT_GOAL := help
.PHONY: help setup run down test coverage faults image image-test soak lint format manifests golden bench mcad lock clean

help:  ## show this list
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

setup: $(STAMP)  ## create .venv with the locked packages and get the control plane's binaries
	$(BIN)/kwokfleet cluster binaries

run: $(STAMP)  ## run a cluster and the daemon on FLEETS until Ctrl-C; the cluster stays
	$(BIN)/kwokfleet up $(FLEETS)

down: $(STAMP)  ## stop and remove the cluster of `make run`
	$(BIN)/kwokfleet cluster down

test: $(STAMP)  ## run all tests, with a real control plane
	$(BIN)/kwokfleet cluster binaries
	$(BIN)/python -m tests.tools
	$(BIN)/python -m tests

# Without a control plane by default: ALL=1 measures what `make test` runs.
coverage: $(STAMP)  ## line and branch coverage as text and HTML in build/coverage; ALL=1: with a cluster
	rm -rf build/coverage
	mkdir -p build/coverage
	$(if $(ALL),$(BIN)/kwokfleet cluster binaries)
	$(BIN)/python -m tests.tools
	$(BIN)/coverage run -m $(if $(ALL),tests,pytest -q -m "not cluster")
	$(BIN)/coverage combine --quiet
	$(BIN)/coverage html --quiet
	$(BIN)/coverage report > build/coverage/report.txt
	@grep ^TOTAL build/coverage/report.txt

faults: $(STAMP)  ## fault tests: failing connections, servers and daemons; takes minutes
	$(BIN)/kwokfleet cluster binaries
	$(BIN)/pytest -m faults

image:  ## build the container image; BUILDER=podman or docker, IMAGE=name, BUILD_OPTIONS=more
	BUILDAH_FORMAT=docker $(BUILDER) build --file Containerfile --tag $(IMAGE) --build-arg VERSION=$(VERSION) \
	  --build-arg REVISION=$$(git rev-parse HEAD) $(BUILD_OPTIONS) .

image-test: $(STAMP)  ## test the image with buildah and a real control plane; takes minutes the first time
	$(BIN)/kwokfleet cluster binaries
	$(BIN)/pytest -m image --timeout 1800 tests/image

soak: $(STAMP)  ## soak test for leaks; MINUTES=10
	$(BIN)/kwokfleet cluster binaries
	$(BIN)/python -m tests.soak --minutes $(or $(MINUTES),10)

lint: $(STAMP)  ## ruff, mypy and import-linter
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache

format: $(STAMP)  ## format the code and apply automatic fixes
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

manifests: $(STAMP)  ## render deploy/bundle, and copy the chart's files from deploy/
	$(BIN)/python deploy/render.py

golden: $(STAMP)  ## update the golden files; review the diff before you commit
	$(BIN)/python -m tests.tools
	$(BIN)/pytest tests/golden --update-golden

bench: $(STAMP)  ## run the benchmarks: tables, and JSON in build/bench
	$(BIN)/kwokfleet cluster binaries
	$(BIN)/python -m tests.bench

mcad: $(STAMP)  ## MCAD's stress test, published and measured times; takes 5 minutes
	$(BIN)/kwokfleet cluster binaries
	$(BIN)/python -m tests.bench mcad

lock: $(STAMP)  ## resolve pyproject.toml into requirements/*.lock (UPGRADE=1: newest versions)
	$(BIN)/pip install --quiet --disable-pip-version-check $(UV)
	$(BIN)/uv pip compile $(LOCK) -o requirements/runtime.lock
	$(BIN)/uv pip compile $(LOCK) --extra dev --constraint requirements/runtime.lock -o requirements/dev.lock
	echo hatchling | $(BIN)/uv pip compile $(LOCK_OPTIONS) --constraint requirements/dev.lock -o requirements/build.lock -

# Hashes but no index URLs: the lock must work with any package index.
LOCK_OPTIONS = --quiet $(if $(UPGRADE),--upgrade) --universal --python-version 3.11 --generate-hashes \
  --no-emit-index-url --no-emit-find-links --no-annotate --custom-compile-command 'make lock'
LOCK = $(LOCK_OPTIONS) pyproject.toml

clean:  ## remove .venv and build output; the cache of binaries stays
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache
