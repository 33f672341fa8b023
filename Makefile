# The two main commands are make serve and make test. Each first creates the
# environment in .venv, if it is missing or older than constraints.txt or
# pyproject.toml. TORCH=cpu installs PyTorch's build without CUDA: on Linux,
# hundreds of megabytes instead of several gigabytes.
PYTHON ?= python3
TORCH ?=
TORCH_FROM := https://download.pytorch.org/whl/$(TORCH)
PY := .venv/bin/python
PIP := $(PY) -m pip install --quiet --disable-pip-version-check -c constraints.txt
READY := .venv/ready

.PHONY: serve test audit quick mutants canary canary-site engines bench bench-quick bench-gpu bench-threads
.PHONY: fmt lint types public synced new check docs docs-properdocs offline

serve: $(READY)
	$(PY) -m mkdocs serve $(if $(ADDRESS),--dev-addr $(ADDRESS))

test: $(READY)
	$(PY) -m pytest -n 2 --dist loadfile -m "not audit"

# The sweeps: all pages in all fonts, widths and schemes, all copies in fresh
# interpreters, all notebooks. `make test` runs a sample of each.
audit: $(READY)
	$(PY) -m pytest -n 2 --dist loadfile -m audit

# Unit tests and properties, without tests that need the built site, a browser, other
# libraries' modules or a model in training, and without the pages of use/.
quick: $(READY)
	$(PY) -m pytest -n 2 --dist loadfile -m "not (audit or oracle or browser)"

# Plants faults in functions of the reference and runs its tests, which takes
# hours; ONLY=core.softmax takes those of one file, after all tests have told
# what they reach. `python -m mutmut results` lists what no test notices.
MUTMUT := mutmut==3.8.1
mutants: $(READY)
	$(PIP) $(MUTMUT)
	$(PY) -m mutmut run "attnref.$(ONLY)*"

# Runs what compares with transformers, PEFT and torch on their newest releases,
# in an environment of its own, and says what breaks and which page shows it.
canary: $(READY)
	$(PY) -m tests.canary

# The same of MkDocs and all else that builds the site, and its quick tests.
canary-site: $(READY)
	$(PY) -m tests.canary site

# Asks engines of attention, in an environment of their own, what they do where
# they differ, and writes sitekit/drawn/engines.json. NEWEST=1 takes the newest.
engines: $(READY)
	$(PY) -m tests.engines $(if $(NEWEST),newest)

# Measures what the site says of times and memory, on a CPU, in ten minutes:
# writes benchmarks/measured.json. ONLY=decode,mla measures these cases alone.
# bench-quick measures the goals at small sizes, in a minute, and writes
# benchmarks/quick.json. Both report what changed since the file was written,
# and end with 0 whatever that is.
bench: $(READY)
	$(PY) -m benchmarks $(if $(ONLY),--only $(ONLY))

bench-quick: $(READY)
	$(PY) -m benchmarks --quick $(if $(ONLY),--only $(ONLY))

# bench-threads measures a decode step on several threads: threads.json.
THREADS ?= 1,2,8,32
bench-threads: $(READY)
	OMP_WAIT_POLICY=PASSIVE $(PY) -m benchmarks.threads --threads $(THREADS)

# The same of attention alone on one GPU, within MINUTES: benchmarks/gpu.json.
# First, the kernels are compared with float64 there.
MINUTES ?= 10
bench-gpu: $(READY)
	$(PY) -m pytest -q tests/reference/kernels -k "float64 or deepseek"
	PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True \
	  $(PY) -m benchmarks.gpu --minutes $(MINUTES)

docs: $(READY)
	$(PY) -m mkdocs build --strict

# The same by ProperDocs, a fork of MkDocs: equal but for the line that names
# the generator. sitekit/THEME.md says why, in "When the theme ends".
PROPERDOCS := properdocs==1.6.7
docs-properdocs: docs
	$(PIP) $(PROPERDOCS)
	$(PY) -m properdocs build --strict -f mkdocs.yml -d build/properdocs
	diff -r -I '<meta name="generator"' site build/properdocs

lint: $(READY)
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .

# Strictly, the package and what builds the site.
types: $(READY)
	$(PY) -m mypy

fmt: $(READY)
	$(PY) -m ruff check --fix .
	$(PY) -m ruff format .

# Records what is public, after a change of it that is meant.
public: $(READY)
	$(PY) -m tests.house.test_public

synced: $(READY)
	$(PY) -m sitekit synced $(PAGE)

# NAME=sliding for a layer with its page, and KEEPS=keys (a variant of attention)
# or KEEPS=state (a recurrence), which is asked otherwise; CACHE=ring for a cache,
# PAGE=layers/absorption for a page alone. KIND= (the class), TITLE= and TITLE_ZH=
# override what is derived from the name.
new: $(READY)
	$(PY) -m sitekit new $(if $(CACHE),cache $(CACHE),$(if $(PAGE),page $(PAGE),layer $(NAME))) --keeps "$(KEEPS)" --kind "$(KIND)" --title "$(TITLE)" --title-zh "$(TITLE_ZH)"

# All tests that concern one page, but for those in a browser: PAGE=gqa.
check: $(READY)
	$(PY) -m pytest -q --page "$(PAGE)"

offline: $(READY)
	$(PY) -m sitekit offline

$(READY): constraints.txt pyproject.toml
	@$(PYTHON) -c 'import sys; v = sys.version_info; sys.exit(v < (3, 11) and "The site needs Python 3.11 or later, and $(PYTHON) is %d.%d: set PYTHON=..." % v[:2])'
	$(PYTHON) -m venv .venv
	$(if $(TORCH),$(PIP) --no-deps --index-url $(TORCH_FROM) torch)
	$(PIP) --upgrade "pip>=25.1" # the first that reads groups
	$(PIP) -e . --group dev
	@touch $(READY)
