# Everything a newcomer types. Needs: Python ≥ 3.11 (with venv and headers), make, a C compiler.
#   PYTHON=python3.12 make env      another interpreter
#   make test ARGS='tests/wire -x'  pytest's own arguments

PYTHON ?= python3
VENV ?= .venv
COMPILED_VENV ?= .venv-compiled
ENGINE ?= emulated
ARGS ?=

PIP_INSTALL := -m pip install --quiet --disable-pip-version-check
DEBIAN_PACKAGES := nginx-light curl prometheus chromium
DEV_EXTRAS := dev,report,tune,engine-llamacpp
DEMO_EXTRAS_emulated := report
DEMO_EXTRAS_llamacpp := report,engine-llamacpp
DEMO_EXTRAS := $(DEMO_EXTRAS_$(ENGINE))

# A stamp says "these extras were installed after pyproject.toml last changed"; it is written last, so that an
# interrupted installation is done again. The developer's environment serves the demo too.
DEV_STAMP := $(VENV)/.installed-dev
DEMO_STAMP := $(if $(wildcard $(DEV_STAMP)),$(DEV_STAMP),$(VENV)/.installed-demo-$(ENGINE))
COMPILED_STAMP := $(COMPILED_VENV)/.installed-compiled
BENCH_STAMP := $(if $(filter compiled,$(BENCH)),$(COMPILED_STAMP),$(DEV_STAMP))
WHEELS := build/wheels

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help env deps test check demo bench compile test-compiled clean

help: ## this list
	@echo 'Tidegate: make TARGET'
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | while IFS='	' read -r name what; do \
		printf '  %-15s %s\n' "$$name" "$$what"; done

define PREFLIGHT
import os, sys, sysconfig
def refuse(sentence):
    sys.exit("error: " + sentence)
found = "%s is Python %d.%d" % (sys.executable, sys.version_info[0], sys.version_info[1])
if sys.version_info < (3, 11):
    refuse(found + "; Tidegate needs 3.11 or newer: install one and run make PYTHON=python3.11 (or newer).")
try:
    import ensurepip, venv
except ImportError:
    refuse(found + " without venv; on Debian and Ubuntu: apt-get install python3-venv.")
if not os.path.exists(os.path.join(sysconfig.get_path("include"), "Python.h")):
    refuse(found + " without its C headers; on Debian and Ubuntu: apt-get install python3-dev.")
endef
export PREFLIGHT

# $(call create_venv,DIR): makes DIR a virtual environment unless a working one is there.
define create_venv
	@command -v $(PYTHON) >/dev/null || { echo 'error: $(PYTHON) is not installed; Tidegate needs Python 3.11 or newer (make PYTHON=...).' >&2; exit 1; }
	@$(PYTHON) -c "$$PREFLIGHT"
	@$(1)/bin/python -m pip --version >/dev/null 2>&1 || $(PYTHON) -m venv --clear $(1)
endef

env: $(DEV_STAMP) ## create .venv with everything needed to develop, test and measure

$(DEV_STAMP): pyproject.toml setup.py
	$(call create_venv,$(VENV))
	@echo 'Installing Tidegate and its development tools into $(VENV) ...'
	@$(VENV)/bin/python $(PIP_INSTALL) -e '.[$(DEV_EXTRAS)]'
	@touch $@

$(VENV)/.installed-demo-%: pyproject.toml setup.py
	$(if $(DEMO_EXTRAS),,$(error ENGINE=$(ENGINE) is unknown: use ENGINE=emulated or ENGINE=llamacpp))
	$(call create_venv,$(VENV))
	@echo 'Installing Tidegate into $(VENV) ...'
	@$(VENV)/bin/python $(PIP_INSTALL) -e '.[$(DEMO_EXTRAS)]'
	@touch $@

deps: ## install the Debian packages that some tests and benchmarks need (root or passwordless sudo)
	@sh .ci/debian-packages $(DEBIAN_PACKAGES)

test: $(DEV_STAMP) ## run every test (ARGS= for pytest)
	@$(MAKE) --silent --no-print-directory deps || true
	@$(VENV)/bin/python -m pytest $(ARGS)

check: $(DEV_STAMP) ## ruff, format, mypy --strict, import contracts
	@$(VENV)/bin/ruff check .
	@$(VENV)/bin/ruff format --check .
	@$(VENV)/bin/mypy
	@$(VENV)/bin/lint-imports

demo: $(DEMO_STAMP) ## emulated cluster, a peak, default vs frozen, a report (ENGINE=llamacpp: a real tiny engine)
	@$(VENV)/bin/tidegate demo --engine $(ENGINE) $(ARGS)

bench: $(BENCH_STAMP) ## gateway beside nginx, twin beside real time (BENCH=compiled: the compiled build)
	@$(MAKE) --silent --no-print-directory deps || true
	@PYTHON="$(abspath $(dir $(BENCH_STAMP))bin/python)" bench/run $(ARGS)

compile: $(COMPILED_STAMP) ## build a wheel with policy, wire and twin compiled by mypyc, into .venv-compiled

COMPILED_SOURCES := $(shell find src -type f -not -path '*/__pycache__/*' -not -path '*.egg-info/*')

# The wheel is built from a copy: no shared object and no stale build directory ever meets the sources.
$(COMPILED_STAMP): pyproject.toml setup.py $(COMPILED_SOURCES) | $(DEV_STAMP)
	$(call create_venv,$(COMPILED_VENV))
	@echo 'Compiling policy, wire and twin ...'
	@rm -rf build/source $(WHEELS) && mkdir -p build/source
	@cp -R src pyproject.toml setup.py README.md LICENSE NOTICE build/source/
	@rm -rf build/source/src/*.egg-info
	@TIDEGATE_COMPILE=1 $(VENV)/bin/python -m pip wheel --quiet --disable-pip-version-check --no-deps \
		--no-build-isolation --wheel-dir $(WHEELS) build/source
	@echo 'Installing the compiled wheel into $(COMPILED_VENV) ...'
	@$(COMPILED_VENV)/bin/python $(PIP_INSTALL) "$$(echo $(CURDIR)/$(WHEELS)/tidegate-*.whl)[$(DEV_EXTRAS)]"
	@$(COMPILED_VENV)/bin/python $(PIP_INSTALL) --force-reinstall --no-deps $(WHEELS)/tidegate-*.whl
	@$(COMPILED_VENV)/bin/python -m tidegate.build_info
	@touch $@

test-compiled: $(COMPILED_STAMP) ## run every test on the compiled build
	@TIDEGATE_EXPECT_COMPILED=1 $(COMPILED_VENV)/bin/python -m pytest $(ARGS)

clean: ## remove environments, builds and caches (keeps runs/)
	rm -rf $(VENV) $(COMPILED_VENV) build dist src/*.egg-info
	rm -rf .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	rm -f bench/gateway/mock bench/gateway/load
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
