# From a fresh clone: `make demo` shows steering, `make test` runs the tests. Both set up everything they need.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
# Two processes of one thread each: threads of both would wait for one another.
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest --numprocesses 2 --dist loadfile

.PHONY: demo test test-other-precision lint format clean

demo: $(VENV)/.installed
	$(BIN)/slalom generate "The pizza" --sentiment negative --compare

test: $(VENV)/.installed-dev
	$(PYTEST)

# The real models in the precision that is not this CPU's own: it is somebody else's default. (Examples, training and
# the bench say nothing of precision.)
test-other-precision: $(VENV)/.installed-dev
	SLALOM_DTYPE=$$($(BIN)/slalom doctor --json | $(BIN)/python -c \
	  "import json, sys; print({'float32': 'bfloat16'}.get(json.load(sys.stdin)['precision'], 'float32'))") \
	  $(PYTEST) -m real --ignore tests/test_examples.py --ignore tests/evaluation --ignore tests/training

lint: $(VENV)/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(VENV)/.installed-dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf $(VENV)

$(VENV)/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable .
	touch $@

$(VENV)/.installed-dev: $(VENV)/.installed
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	touch $@
