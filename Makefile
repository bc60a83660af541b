# PYTHON makes the virtual environment. VENV=none uses PYTHON as it is and installs nothing.
PYTHON ?= python3
VENV ?= .venv

ifeq ($(VENV),none)
  PY := $(PYTHON)
  BASE :=
  READY :=
  export PYTHONPATH := $(CURDIR)$(if $(PYTHONPATH),:$(PYTHONPATH))
else
  PY := $(VENV)/bin/python
  BASE := $(VENV)/.base
  READY := $(VENV)/.installed
endif

# Read when torch is loaded: threads that wait actively are ten times slower on a busy machine.
export OMP_WAIT_POLICY ?= PASSIVE

# What is imported is compiled then, once; to compile all that is installed takes most of the set-up.
PIP := --quiet --no-compile --constraint constraints.txt

# Checks types and shapes of all arguments at run time, which takes three times as long.
TYPED := --jaxtyping-packages=samplers,dllm_decode,eval,checked_types.check
# Modules that call every folder, recorded runs among them, and a quarter of the random decodes.
TYPED_TESTS := $(addprefix tests/,golden/test_models.py \
  property/test_acceptance_laws.py unit/test_layers.py \
  unit/dllm_decode/engine/test_forward.py unit/samplers/test_view.py \
  $(patsubst %,unit/dllm_decode/%.py,caches/test_caches core/test_recorders \
    engine/constraints/test_paths models/network/test_groups models/network/test_moe rollouts/test_score \
    training/test_block_diffusion training/test_learn2pd training/test_certainty) \
  unit/eval/lm_harness/test_likelihood.py unit/eval/metrics/test_metrics.py)

FEW := test_a_few_random_cases_decode_the_same_alone_together_and_with_few_rows

.PHONY: help demo test test-all test-gpu bench bench-gpu real docs lists fix lint types check clean
.DELETE_ON_ERROR:

help:  ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' $(firstword $(MAKEFILE_LIST)) | expand -t 12

demo: $(BASE)  ## set up, then run the main example
	$(PY) examples/llada_gsm8k.py

test: $(READY)  ## set up, then run the tests (CPU, no network)
	$(PY) -m pytest -n 2
	$(PY) -m pytest -n 2 $(TYPED) $(TYPED_TESTS) "tests/property/test_fuzz_engine.py::$(FEW)[50]"

test-all: $(READY)  ## the slow tests too, with types checked but for compiled code
	$(PY) -m pytest -n 2 $(TYPED) -m "not gpu and not untyped"
	$(PY) -m pytest -n 2 -m "untyped and not gpu"

test-gpu: $(READY)  ## the tests that need a GPU; VENV=none for a preinstalled environment
	$(PY) -m pytest -n 4 -m gpu -rs -p no:benchmark

bench: $(BASE)  ## speed and memory beside a plain reference loop
	$(PY) -m benchmarks

bench-gpu: $(BASE)  ## measure on a GPU, part by part, into results/gpu
	$(PY) -m benchmarks gpu

real: $(READY)  ## measure a checkpoint next to published figures: MODEL=folder
	$(PY) -m benchmarks real $(if $(MODEL),--model $(MODEL)) $(OPTIONS)

lists: $(READY)  ## write the lists of plug-ins, after a new one
	PYTHONPATH=. $(PY) docs/make_lists.py

fix: $(READY)  ## mend what the linter can, and format
	$(PY) -m ruff check --fix .
	$(PY) -m ruff format .

lint: $(READY)  ## check style and format
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .

types: $(READY)  ## check types
	$(PY) -m mypy

docs: $(READY)  ## the documentation as a site in build/site
	$(if $(READY),$(PY) -m pip install $(PIP) --editable ".[docs]")
	NO_MKDOCS_2_WARNING=1 $(PY) -m mkdocs build --quiet

check: lint types test  ## everything a change must pass

clean:  ## remove the virtual environment and the tools' caches
	rm -rf .venv .hypothesis .mypy_cache .pytest_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(VENV)/.base: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; v = sys.version_info; sys.exit(None if v >= (3, 11) else \
	  f"Python 3.11 or later is required, got {v[0]}.{v[1]}. Name another one: make PYTHON=python3.11")'
	$(PYTHON) -m venv $(VENV)
	$(VENV)/bin/python -m pip install $(PIP) --editable .
	@touch $@

$(VENV)/.installed: $(VENV)/.base
	$(VENV)/bin/python -m pip install $(PIP) --editable ".[eval,eval-text,lm-eval,lora,serve,test]"
	@touch $@
