# SPDX-License-Identifier: Apache-2.0
# Everything a person types. `make demo` and `make test` install what they lack.
SHELL := /bin/bash
PY := build/venv/bin/python
export PYTHONPATH := $(CURDIR):$(CURDIR)/kmod:$(CURDIR)/probes:$(CURDIR)/agent:$(CURDIR)/runtime:$(CURDIR)/scheduler
K ?= 6.12
GPUS ?= 2
OWNERS ?= 1
PYTEST := $(PY) -m pytest

.PHONY: help setup demo test check unit vm soak bench shell clean
help:
	@echo "make demo [OWNERS=1] [GPUS=2]  one hand-back, live, in a guest"
	@echo "make test                      every check and every test, on every kernel"
	@echo "make check | unit | vm K=6.12  a part of it: static checks, host tests, the guest tests of one kernel"
	@echo "make soak [K=6.12]             the same promises with long counts"
	@echo "make bench [ONLY=P1]           the figures, into build/bench.json"
	@echo "make shell [K=6.12]            an interactive guest: a whole node, lending"
	@echo "make clean                     forget build/ (the caches in ~/.cache/spotgpu stay)"

setup:
	@tests/tools/setup.sh

demo: setup
	@$(PY) tests/demo/run.py -k $(K) --owners $(OWNERS) --gpus $(GPUS)

test: setup
	@tests/tools/check.sh
	@$(PYTEST) tests

check: setup
	@tests/tools/check.sh

unit: setup
	@$(PYTEST) tests/unit

vm: setup
	@$(PYTEST) tests/guest --kernel $(K)

soak: setup
	@$(PYTEST) tests/guest --soak -m soak $(if $(filter command line,$(origin K)),--kernel $(K))

bench: setup
	@$(PY) tests/bench/run.py -k $(K) $(if $(ONLY),--only $(ONLY))

shell: setup
	@$(PY) tests/vm/run.py -k $(K) --shell --mem 4096 -- python3 tests/demo/shell.py

clean:
	rm -rf build tests/sim/build
