# Set-up and daily work. On a fresh machine `make demo` or `make test` is all that is needed.
VENV ?= .venv
PYTHON ?= python3
BIN = $(VENV)/bin
STAMP = $(VENV)/.installed
TRAINS = $(VENV)/.trains
COMPILED = $(VENV)/.compiled

.PHONY: install demo test types units attacks lint docs lock clean

install: $(COMPILED)

# All packages are compared with their hashes, but torch: its builds differ by machine. It comes by
# itself, with all that it needs there already: where a CPU build is to be found, nothing may pull
# CUDA in. greenformer, which the tests compare with, pins packages of 2021 that it runs without.
PIP = $(BIN)/pip install --quiet --no-compile
define INSTALL
$(PYTHON) -m venv $(VENV)
$(PIP) --no-deps --require-hashes -r $(1)
$(PIP) --no-warn-conflicts -c constraints.txt torch
$(PIP) --no-deps --no-build-isolation -e .
endef
$(STAMP): pyproject.toml constraints.txt requirements-dev.lock .ci/fix_torchaudio.py
	$(call INSTALL,requirements-dev.lock)
	$(COMPILES) $(BIN)/python .ci/fix_torchaudio.py
	touch $(TRAINS) $@

# What training needs is less than half of what developers need.
$(TRAINS): pyproject.toml constraints.txt requirements-train.lock
	$(call INSTALL,requirements-train.lock)
	touch $@

# Compiling is faster by all cores at once than by pip; files that are no Python 3 are left out, and
# the tests of packages. Tests need it: the warning of a compiler is an error in them.
$(COMPILED): $(STAMP)
	$(BIN)/python -m compileall -q -j 0 -x '/site-packages/.*/tests/' $(VENV)/lib > /dev/null || true
	touch $@

# The demo imports few of the modules, which are compiled then; an environment may forbid that.
COMPILES = PYTHONDONTWRITEBYTECODE=
demo: $(TRAINS)
	$(COMPILES) recipes/demo/run.sh $(BIN)/asr

# Tests wait for processes a sixth of their time, so three run on two cores, beside the type checker.
test: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	@$(MAKE) --no-print-directory --jobs=2 types units

types:
	$(BIN)/mypy

# Hundreds of the processes that tests start load the package, in an environment too that lets none
# of them write what it compiled.
units:
	$(BIN)/python -m compileall -q asr data_prep serve
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 3 --dist worksteal

# All that takes long: tests, mostly attacks, and a minute of fuzzing for each parser.
attacks: install
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m slow
	OMP_NUM_THREADS=1 $(BIN)/python -m tests.attacks.fuzz --seconds 60

lint: install
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	$(BIN)/mypy

# Dead links and warnings are errors, and so is a page of results that is not its files'.
docs: install
	$(BIN)/python -m benchmarks.tables --check
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

# Write the locks again after a change of constraints.txt. uv only writes them. It must find a build
# of torch for CPUs: set UV_TORCH_BACKEND=cpu, or UV_FIND_LINKS to a folder with one.
COMPILE = uv pip compile --quiet --generate-hashes --no-annotate --no-emit-package torch \
	--python-version 3.11.7 --custom-compile-command "make lock"
lock:
	$(COMPILE) --no-deps constraints.txt -o requirements-dev.lock
	$(COMPILE) -c constraints.txt pyproject.toml --extra serve --extra cloud --extra chinese -o requirements.lock
	$(COMPILE) -c constraints.txt pyproject.toml --extra train --extra chinese -o requirements-train.lock

clean:
	rm -rf $(VENV) build *.egg-info
