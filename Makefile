# Two commands do everything: make serve, make test. Each makes its own
# environment in .venv when that is missing or older than what it is made from.
PYTHON ?= python3
PY := .venv/bin/python
READY := .venv/ready
export NO_MKDOCS_2_WARNING := 1

.PHONY: serve test docs fmt synced offline

serve: $(READY)
	$(PY) -m mkdocs serve $(if $(ADDRESS),--dev-addr $(ADDRESS))

test: $(READY)
	$(PY) -m pytest -n 2 --dist loadfile -m "not alone"
	$(PY) -m pytest -m alone

docs: $(READY)
	$(PY) -m mkdocs build --strict

fmt: $(READY)
	$(PY) -m ruff check --fix .
	$(PY) -m ruff format .

synced: $(READY)
	$(PY) -m sitekit synced $(PAGE)

offline: $(READY)
	$(PY) -m sitekit offline

$(READY): constraints.txt pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "The site needs Python 3.11 or later; set PYTHON=...")'
	$(PYTHON) -m venv .venv
	$(PY) -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[dev]"
	@touch $(READY)
