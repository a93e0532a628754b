# Everything starts here: `make demo` shows it working, `make test` checks it, `make setup` prepares .venv alone.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed

# Many tests start a process, which takes twice as long where no compiled module may be kept: an empty value allows it.
export PYTHONDONTWRITEBYTECODE =

.PHONY: setup demo test check pytest thorough clean

setup: $(STAMP)

# The pins live in constraints.txt alone; pyproject.toml keeps ranges, so that users keep the torch they have.
$(STAMP): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --no-compile --constraint constraints.txt --editable '.[dev]'
	touch $@

demo: setup
	$(BIN)/perdure demo

check: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# The type checker has one thread, so that it takes turns with the tests.
test: setup
	$(MAKE) --jobs=2 check pytest

# Two worker processes with one torch thread each: two with two threads on two cores crawl. A file's tests share what
# they learned, so it stays with one worker; in the order of the folders, the long files are not the last.
PYTEST = OMP_NUM_THREADS=1 $(BIN)/pytest -n 2 --dist loadfile --no-loadscope-reorder

pytest: setup
	$(PYTEST)

# Also what repeats at length, on real files and in many processes, what other tests show.
thorough: setup
	$(PYTEST) -m 'thorough or not thorough'

clean:
	rm -rf $(VENV) build *.egg-info .pytest_cache .mypy_cache .ruff_cache
