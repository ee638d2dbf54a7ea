# Every target sets up what it needs in .venv; Python 3.11 or later has to be there; the compiler that torch.compile
# needs is installed if apt-get may be used, and asked for otherwise.
#
#   PYTHON=python3.12       the interpreter that .venv is made from
#   CONSTRAINTS=FILE        what is installed: constraints.txt, or constraints-cuda.txt
#   CONFIG=FILE             what `make serve` serves
#   ARGS='...'              more arguments for the command that a target runs

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help

PYTHON ?= python3
CONSTRAINTS ?= constraints.txt
CONFIG ?= deploy/config/cpu.yaml
ARGS ?=

VENV := .venv
BIN := $(VENV)/bin
# One stamp for each set of pins, the other sets' gone: what is installed is always what CONSTRAINTS says.
PINS := $(basename $(notdir $(CONSTRAINTS)))
SERVER := $(VENV)/.server-installed-$(PINS)
TOOLS := $(VENV)/.tools-installed-$(PINS)
# Recursive on purpose: read when a recipe runs, so that CONSTRAINTS may be given on the command line.
TORCH = $(shell grep '^torch==' $(CONSTRAINTS))

.PHONY: help
help: ## list the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /\1\t/' | expand -t 16

.PHONY: demo
demo: $(SERVER) compiler ## serve tiny-llama and three elementwise chains, each fused and not, load-test them, write reports/
	$(BIN)/gatefuse demo --config deploy/config/demo.yaml --report reports/demo.html $(ARGS)

.PHONY: serve
serve: $(SERVER) compiler ## serve CONFIG until Ctrl-C or SIGTERM
	exec $(BIN)/gatefuse serve $(CONFIG) $(ARGS)

.PHONY: test
test: $(TOOLS) compiler ## every test that this machine can run
	$(BIN)/pytest -n 2 --dist loadfile --no-loadscope-reorder $(ARGS)

.PHONY: gpu-test
gpu-test: $(TOOLS) compiler ## the kernels on this machine's GPU
	$(BIN)/pytest -m gpu tests/kernels $(ARGS)

.PHONY: memcheck
memcheck: $(TOOLS) compiler ## the same kernels at edges, under compute-sanitizer
	PYTHON=$(BIN)/python tests/kernels/gpu/memcheck.sh $(ARGS)

.PHONY: lint
lint: $(TOOLS) ## style: ruff for Python, buf for the .proto file
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	cd protos && ../$(BIN)/buf lint && ../$(BIN)/buf format --diff --exit-code

.PHONY: types
types: $(TOOLS) ## mypy, strict
	$(BIN)/mypy

.PHONY: contracts
contracts: $(TOOLS) ## who may import what
	$(BIN)/lint-imports

.PHONY: protos
protos: $(TOOLS) ## write the message classes from the .proto file
	$(BIN)/python protos/generate.py

.PHONY: protos-check
protos-check: $(TOOLS) ## the message classes must be what `make protos` would write
	$(BIN)/python protos/generate.py --check

.PHONY: deploy-check
deploy-check: $(TOOLS) ## the compose file, the Dockerfiles, Prometheus' configurations and rules, the boards
	deploy/check.sh $(BIN)

.PHONY: bench
bench: $(TOOLS) ## the service against two bare gRPC servers; writes benchmarks/results/
	$(BIN)/python -m benchmarks.service_overhead $(ARGS)

.PHONY: clean
clean: ## remove .venv, caches and reports
	rm -rf $(VENV) .cache .mypy_cache .pytest_cache .ruff_cache .hypothesis .import_linter_cache reports

$(BIN)/python:
	@command -v $(PYTHON) >/dev/null || { echo "$(PYTHON) is not there: install Python 3.11 or later" >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "$(PYTHON) is $$($(PYTHON) -V 2>&1): Gatefuse needs 3.11 or later; name another with PYTHON=python3.12" >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { \
	  echo "$(PYTHON) cannot make virtual environments: on Debian and Ubuntu, apt-get install python3-venv" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)

# torch goes first and alone: it is the one package with builds to choose from (CPU, CUDA), and what follows must not
# replace the one that was chosen.
$(SERVER): pyproject.toml $(CONSTRAINTS) constraints-common.txt | $(BIN)/python
	@rm -f $(VENV)/.server-installed-* $(VENV)/.tools-installed-*
	$(BIN)/python -m pip install --quiet -c $(CONSTRAINTS) $(TORCH)
	$(BIN)/python -m pip install --quiet -c $(CONSTRAINTS) -e '.[server]'
	@touch $@

$(TOOLS): $(SERVER)
	$(BIN)/python -m pip install --quiet -c $(CONSTRAINTS) -e '.[server,dev]'
	@touch $@

# The client in examples/cpp is built by its test where these are there; the test says so where they are not.
CPP_PACKAGES := g++ make pkg-config libgrpc++-dev libprotobuf-dev protobuf-compiler-grpc
.PHONY: cpp-tools
cpp-tools: ## install what examples/cpp is built with, if apt-get may be used
	@if command -v grpc_cpp_plugin >/dev/null && pkg-config --exists grpc++ protobuf; then exit 0; fi; \
	if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	  apt-get update -qq && apt-get install -y -qq --no-install-recommends $(CPP_PACKAGES); \
	else \
	  echo "examples/cpp will not be built: install $(CPP_PACKAGES)" >&2; \
	fi

# The status page's tests look at it in a browser; they say so where there is none.
.PHONY: browser
browser: ## install the browser that the status page is tested in, if apt-get may be used
	@if command -v chromium >/dev/null; then exit 0; fi; \
	if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	  apt-get update -qq && apt-get install -y -qq --no-install-recommends chromium fonts-dejavu-core; \
	else \
	  echo "the status page will not be tested in a browser: install chromium" >&2; \
	fi

# torch.compile writes C++ on a CPU, and Triton a C launcher on a GPU: both are compiled on this machine, with the
# headers of this Python.
HEADERS := $(BIN)/python -c 'import pathlib, sys, sysconfig; sys.exit(not (pathlib.Path(sysconfig.get_path("include")) / "Python.h").exists())'
.PHONY: compiler
compiler: | $(BIN)/python
	@packages=; \
	command -v "$${CXX:-g++}" >/dev/null || packages="g++"; \
	$(HEADERS) || packages="$$packages python3-dev"; \
	if [ -n "$$packages" ]; then \
	  if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	    apt-get update -qq && apt-get install -y -qq --no-install-recommends $$packages; \
	  fi; \
	  { command -v "$${CXX:-g++}" >/dev/null && $(HEADERS); } || { \
	    echo "torch.compile needs a C++ compiler (g++, or CXX=...) and Python's headers: install $$packages" >&2; exit 1; }; \
	fi
