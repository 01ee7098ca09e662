# Two commands do everything on a machine with Python 3.11, pip and make: `make demo` and `make test`.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed

.PHONY: demo test test-slow lint install clean

demo: install  ## TRACE beside Pretrain, Vanilla and Oracle on the embedded synthetic log
	$(BIN)/tracecvr demo --out runs/demo

test: install lint  ## lint, types and the whole fast suite
	$(BIN)/pytest -n 2 -m "not slow"

test-slow: install  ## the tests that take minutes, and those on real logs
	$(BIN)/pytest -m slow

lint: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

install: $(INSTALLED)

$(INSTALLED): pyproject.toml constraints.txt
	$(PYTHON) -c "import sys; sys.exit(sys.version_info < (3, 11) and 'tracecvr needs Python 3.11 or newer: make PYTHON=python3.11 ...')"
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable ".[dev]"
	touch $(INSTALLED)

clean:
	rm -rf $(VENV) runs .mypy_cache .pytest_cache .ruff_cache .hypothesis
