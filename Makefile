# Everything a developer runs. `make` lists the targets; each sets up what it needs, from a bare checkout.
#
# Needed on the machine: python3 (3.10 or later), a C++ compiler, make, and a package index that pip can reach.
# Variables: PYTHON (the interpreter to make .venv with), JOBS (parallel test processes), PEERS=1 (tests install torch and
# openvino too), BENCH (arguments of `make bench`), TESTS (files or folders: what `make test` and its like take tests from).
#
# Tests have three tiers, by marker. Unmarked: `make test`, minutes, every feature at a tiny size. `broad`: further sizes,
# dtypes and networks of the same features; continuous integration runs them too. `slow`: long sweeps, `make test-all` alone.

VENV := .venv
BIN := $(VENV)/bin
JOBS ?= auto
TESTS ?= tests
BENCH ?= lstm --input-size 256 --hidden-size 256
DEMO := tutorials/demo.py
TORCH := torch==2.13.0
LOCKED := requirements.lock
LOCKED_DOCS := requirements-docs.lock

PYTEST := $(BIN)/python -m pytest -n $(JOBS) --maxprocesses 4 --dist worksteal
# Python compiles what is imported; of what is installed that is little.
INSTALL := $(BIN)/python -m pip install --quiet --no-compile

TEST_SETUP := $(VENV)/.installed-test $(if $(filter 1,$(PEERS)),$(VENV)/.installed-peers)

# The test files of the names of changed files; all cells share theirs.
CHANGED := git status --porcelain --untracked-files=all | sed -n -e '\|tvm_rnn/cells/|p' -e 's|^...\(.* -> \)*.*/\(test_\)*\([a-z0-9_]*\)\.py$$|\3|p' \
	| sed 's|.*tvm_rnn/cells/.*|cells*|' | sort -u | while read name; do find tests -name "test_$$name.py"; done | grep -v test_house_rules

export PIP_DISABLE_PIP_VERSION_CHECK := 1
# Some containers set it: every process that a test starts would read TVM and this package from their sources.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help demo test test-broad test-all fast lint format golden docs docs-serve figures hooks doctor bench lock audit dist clean distclean

help: ## List these targets
	@echo "usage: make TARGET"
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  \1|\2/p' $(MAKEFILE_LIST) | awk -F'|' '{ printf "%-12s %s\n", $$1, $$2 }'

demo: $(VENV)/.installed-demo ## Compile a cell, check it and use it: the tour of this project
	$(BIN)/python $(DEMO)

test: $(TEST_SETUP) ## Run the quick tests: every feature, in at most five minutes on two cores
	$(PYTEST) -m "not broad and not slow" $(TESTS)

test-broad: $(TEST_SETUP) ## Run what continuous integration runs beyond `make test`
	$(PYTEST) -m "broad and not slow" $(TESTS)

test-all: $(TEST_SETUP) $(VENV)/.installed-docs ## Run every test; with PEERS=1 also those that need torch or openvino
	$(PYTEST) $(TESTS)

fast: $(TEST_SETUP) ## Run the tests of what git says is changed but the slow ones, and the house rules
	$(PYTEST) -m "not slow" tests/test_house_rules.py $$($(CHANGED))

golden: $(TEST_SETUP) ## Rewrite the golden texts of the passes; read the difference
	TVM_RNN_UPDATE_GOLDEN=1 $(BIN)/python -m pytest -q tests/compiler/test_stage_texts.py
	git --no-pager diff --stat tests/golden

lint: $(VENV)/.installed-test ## Check style, types and imports (ruff, mypy, import-linter); print the longest files and functions
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	@$(BIN)/python tests/longest.py

format: $(VENV)/.installed-test ## Rewrite the sources in the house style
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: $(VENV)/.installed-docs $(VENV)/.installed-notebooks ## Run the tutorials, build the documentation (build/docs/html/index.html) and check its links
	$(BIN)/python tutorials/site/notebooks.py build/notebooks
	$(BIN)/python tutorials/site/amplifier.py build/amplifier
	$(BIN)/python tutorials/site/generate.py build/docs build/notebooks build/amplifier
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict -f build/docs/mkdocs.yml

docs-serve: docs ## Show the documentation in a browser
	$(BIN)/python -m http.server --directory build/docs/html 8000

hooks: $(VENV)/.installed-test ## Check style, types and house rules before each commit
	$(INSTALL) 'pre-commit>=3.7'
	$(BIN)/pre-commit install

figures: $(VENV)/.installed-docs ## Draw the README's figure from the records of benchmarks
	$(BIN)/python tutorials/site/benchmarks.py

doctor: $(VENV)/.installed-test ## Say what is installed and which targets work here
	$(BIN)/tvm-rnn doctor

bench: $(VENV)/.installed-peers ## Time a cell beside torch, onnxruntime, openvino and NumPy (installs them)
	mkdir -p build
	$(BIN)/tvm-rnn compile $(BENCH) --seed 0 -o build/bench.so
	$(BIN)/tvm-rnn bench build/bench.so --batch 1
	$(BIN)/tvm-rnn bench build/bench.so --batch 16

RESOLVE := build/lock/bin/uv pip compile --quiet --universal --python-version 3.10 --no-header --no-emit-index-url pyproject.toml

# Names and versions say what a component is; where an index serves it is each user's own choice.
WITHOUT_PLACES := import json, sys; sbom = json.load(open(sys.argv[1])); \
	[part.pop("externalReferences", None) for part in sbom["components"] + sbom["metadata"]["tools"]["components"]]; print(json.dumps(sbom, indent=1))

lock: build/lock ## Resolve all dependencies anew: versions and digests for development, the list of components in the wheel
	echo 'setuptools>=77' | $(RESOLVE) - --extra test --extra demo --generate-hashes --upgrade -o $(LOCKED) >/dev/null
	$(RESOLVE) --extra docs --generate-hashes --upgrade --constraints $(LOCKED) -o $(LOCKED_DOCS) >/dev/null
	$(RESOLVE) --constraints $(LOCKED) -o build/lock/runtime.txt >/dev/null
	build/lock/bin/cyclonedx-py requirements build/lock/runtime.txt --pyproject pyproject.toml --mc-type library \
		--output-reproducible --short-PURLs -o build/lock/sbom.json
	$(BIN)/python -c '$(WITHOUT_PLACES)' build/lock/sbom.json > tvm_rnn/sbom.cdx.json

audit: build/lock ## Compare the locked dependencies with the known advisories
	build/lock/bin/pip-audit --disable-pip --require-hashes -r $(LOCKED)
	build/lock/bin/pip-audit --disable-pip --require-hashes -r $(LOCKED_DOCS)

# What git has of the package is in the wheel, and nothing else is.
SAME_FILES := import glob, subprocess, zipfile; (wheel,) = glob.glob("dist/*.whl"); \
	ours = {n.replace("schedules/", "tvm_rnn/schedules/", 1) if n.startswith("schedules/") else n \
		for n in subprocess.check_output(["git", "ls-files", "tvm_rnn", "schedules"], text=True).split()}; \
	there = {n for n in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in n}; \
	assert ours == there, f"only in one of git and {wheel}: {sorted(ours ^ there)}"; print(f"{wheel}: {len(there)} files")

dist: build/dist-tools ## Build the wheel and the sdist into dist/, and try the wheel in an environment of its own
	rm -rf dist build/dist-check
	SOURCE_DATE_EPOCH=$$(git log -1 --format=%ct) build/dist-tools/bin/python -m build --quiet --outdir dist .
	build/dist-tools/bin/python -m twine check --strict dist/*
	$(BIN)/python -c '$(SAME_FILES)'
	$(BIN)/python -m venv build/dist-check
	build/dist-check/bin/python -m pip install --quiet dist/*.whl
	cd build/dist-check && bin/tvm-rnn compile lstm --input-size 2 --hidden-size 3 --seed 0 -o lstm.so --bundle lstm \
		&& bin/python -c 'import numpy; numpy.save("x.npy", numpy.ones((4, 1, 2), "f4"))' \
		&& bin/tvm-rnn run lstm.so --input x.npy --output y.npy

build/dist-tools: | $(BIN)/python
	$(BIN)/python -m venv build/dist-tools
	build/dist-tools/bin/python -m pip install --quiet 'build>=1.2' 'twine>=6'

build/lock: | $(BIN)/python
	$(BIN)/python -m venv build/lock
	build/lock/bin/python -m pip install --quiet 'cyclonedx-bom>=7' 'pip-audit>=2.7' 'uv>=0.5'

clean: ## Remove build results and caches
	rm -rf build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -not -path './$(VENV)/*' -prune -exec rm -rf {} +

distclean: clean ## Remove the virtual environment as well
	rm -rf $(VENV)

# One stamp per extra of pyproject.toml: pip runs again only when that file changes. What is installed for development and
# for continuous integration is locked: versions and digests are those of requirements.lock; what the documentation needs
# besides, thousands of small files, has a lock of its own.
$(VENV)/.installed-%: pyproject.toml | $(BIN)/python
	$(INSTALL) --editable '.[$*]'
	@touch $@

$(VENV)/.installed-docs: $(LOCKED_DOCS) $(VENV)/.installed-test
	$(INSTALL) --require-hashes --requirement $(LOCKED_DOCS)
	@touch $@

# Of tutorials whose packages lack the pages show no results, and say so.
$(VENV)/.installed-notebooks: pyproject.toml $(VENV)/.installed-test
	$(INSTALL) --editable '.[notebooks]'
	@if $(BIN)/python -c 'import torch' 2>/dev/null; then $(INSTALL) --editable '.[notebooks-torch]'; \
		else echo "torch is not at hand: tutorials that need it will show no results"; fi
	@touch $@

# The tests that compare with torch skip themselves where it is absent. The default index serves torch with gigabytes of
# CUDA libraries, too much to install unasked; a wheel in a local folder that pip is configured to look in (find-links,
# which --no-index leaves on) is installed: unpacked while pip installs the rest, then with what it depends on.
$(VENV)/.installed-test: pyproject.toml tvm_rnn/version.py $(LOCKED) | $(BIN)/python
	@$(INSTALL) --no-index --no-deps '$(TORCH)' >/dev/null 2>&1 & torch=$$!; \
	echo "pip install --requirement $(LOCKED)"; \
	$(INSTALL) --no-warn-conflicts --require-hashes --requirement $(LOCKED) \
		&& $(INSTALL) --no-warn-conflicts --no-deps --no-build-isolation --editable . || { wait; exit 1; }; \
	if wait $$torch; then \
		echo "pip install $(TORCH)" && $(INSTALL) '$(TORCH)'; \
	else \
		echo "torch is not at hand: tests that compare with it will be skipped (make test PEERS=1 installs it)"; \
	fi
	@touch $@

# The first interpreter that fits, whatever `python3` is. Debian's python3 may lack ensurepip, without which a virtual
# environment has no pip.
FITS := import sys; raise SystemExit(sys.version_info < (3, 10))
$(BIN)/python:
	@for compiler in $$CXX c++ g++ clang++; do command -v $$compiler >/dev/null 2>&1 && found=1; done; \
	if [ -z "$$found" ]; then \
		echo "error: no C++ compiler (looked for \$$CXX, c++, g++, clang++): install one, e.g. apt-get install g++" >&2; exit 1; \
	fi
	@for python in $(PYTHON) python3 python3.13 python3.12 python3.11 python3.10; do \
		$$python -c '$(FITS)' >/dev/null 2>&1 || continue; \
		if ! $$python -c 'import ensurepip, venv' >/dev/null 2>&1; then bare=$$python; continue; fi; \
		echo "$$python -m venv $(VENV)"; exec $$python -m venv $(VENV); \
	done; \
	if [ -n "$$bare" ]; then \
		echo "error: $$bare cannot make virtual environments: install its venv package, e.g. apt-get install python3-venv" >&2; \
	else \
		echo "error: no Python from 3.10 on (python3 is: $$(python3 --version 2>&1)): install one, or make PYTHON=/path/to/python" >&2; \
	fi; exit 1
