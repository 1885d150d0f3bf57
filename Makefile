# From a fresh clone: `make demo` shows steering, `make test` runs the tests. Both set up everything they need.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin

.PHONY: demo test test-other-precision lint format clean

demo: $(VENV)/.installed
	$(BIN)/slalom generate "The pizza" --sentiment negative --compare

test: $(VENV)/.installed-dev
	$(BIN)/python -m pytest --numprocesses 2 --dist loadfile

# The real models in the precision that is not this CPU's own: it is somebody else's default.
test-other-precision: $(VENV)/.installed-dev
	SLALOM_DTYPE=$$($(BIN)/slalom doctor --json | $(BIN)/python -c \
	  "import json, sys; print({'float32': 'bfloat16'}.get(json.load(sys.stdin)['precision'], 'float32'))") \
	  $(BIN)/python -m pytest -m real

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
