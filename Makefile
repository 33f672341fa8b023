# Two commands do everything: make serve, make test. Each makes its own
# environment in .venv when that is missing or older than what it is made from.
# TORCH=cpu installs PyTorch's build without CUDA: on Linux, hundreds of
# megabytes in place of several gigabytes.
PYTHON ?= python3
TORCH ?=
TORCH_FROM := https://download.pytorch.org/whl/$(TORCH)
PY := .venv/bin/python
PIP := $(PY) -m pip install --quiet --disable-pip-version-check -c constraints.txt
READY := .venv/ready
export NO_MKDOCS_2_WARNING := 1

.PHONY: serve test quick mutants docs fmt synced new check offline

serve: $(READY)
	$(PY) -m mkdocs serve $(if $(ADDRESS),--dev-addr $(ADDRESS))

test: $(READY)
	$(PY) -m pytest -n 2 --dist loadfile -m "not alone"
	$(PY) -m pytest -m alone

# Unit tests and laws: neither the built site nor other libraries' modules.
quick: $(READY)
	$(PY) -m pytest -n 2 --dist loadfile -m "not (alone or oracle or browser)"

# ONLY=cost or ONLY=cost:131,masks; SIZE=0 takes all of those.
SIZE ?= 120
SEED ?= 1
mutants: $(READY)
	$(PY) -m tests.mutants --size $(SIZE) --seed $(SEED) --only "$(ONLY)"

docs: $(READY)
	$(PY) -m mkdocs build --strict

fmt: $(READY)
	$(PY) -m ruff check --fix .
	$(PY) -m ruff format .

synced: $(READY)
	$(PY) -m sitekit synced $(PAGE)

# NAME=sliding for a layer, CACHE=ring, or PAGE=layers/absorption for a page
# alone; KIND=, TITLE= and TITLE_ZH= if what is made of the name is not right.
new: $(READY)
	$(PY) -m sitekit new $(if $(CACHE),cache $(CACHE),$(if $(PAGE),page $(PAGE),layer $(NAME))) --kind "$(KIND)" --title "$(TITLE)" --title-zh "$(TITLE_ZH)"

# What concerns one page, in a browser too.
check: $(READY)
	$(PY) -m pytest -q --page "$(PAGE)"

offline: $(READY)
	$(PY) -m sitekit offline

$(READY): constraints.txt pyproject.toml
	@$(PYTHON) -c 'import sys; v = sys.version_info; sys.exit(v < (3, 11) and "The site needs Python 3.11 or later, and $(PYTHON) is %d.%d: set PYTHON=..." % v[:2])'
	$(PYTHON) -m venv .venv
	$(if $(TORCH),$(PIP) --no-deps --index-url $(TORCH_FROM) torch)
	$(PIP) -e ".[dev]"
	@touch $(READY)
