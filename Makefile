# Two commands do everything on a machine with Python 3.11, pip and make: `make demo` and `make test`.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed

.PHONY: demo test test-slow soak test-scale browser docs lint install clean

demo: install  ## every method on the embedded synthetic log, and a report to look at
	$(BIN)/tracecvr bench quick --data synthetic --out runs/demo

test: install lint  ## lint, types and the whole fast suite
	$(BIN)/pytest -n 2 --dist worksteal -m "not slow and not browser and not scale"

test-slow: install  ## the tests that take minutes, and those on real logs
	$(BIN)/pytest -m slow

soak: install  ## 200 rounds of kills and damages on a live model
	TRACECVR_SOAK=200 $(BIN)/pytest -m slow -s tests/online/test_soak.py

test-scale: install  ## Ray clusters and brokers, real ones, on this machine
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable ".[ray,brokers]"
	$(BIN)/pytest -m scale

browser: install  ## the report in a real browser: chromium from PATH, or Debian's package if we may install it
	command -v chromium >/dev/null || { test "$$(id -u)" = 0 && apt-get update -qq && apt-get install -y -qq --no-install-recommends chromium >/dev/null; } \
	  || { echo "make browser needs chromium: install it, or run this as root on Debian" >&2; exit 1; }
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable ".[browser,figures]"
	$(BIN)/pytest -m browser

docs: install  ## the site, in site/: without a network, and without a warning or a broken link
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable ".[docs]"
	$(BIN)/python docs/site.py

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
	rm -rf $(VENV) runs site build .mypy_cache .pytest_cache .ruff_cache .hypothesis
