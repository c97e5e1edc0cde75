# make demo: fine-tune BERT under an emulated GPU and show what the plan saves.   make test: everything CI runs.
# A bare machine needs python3 (3.11 or later), pip and make.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

# Where it is set, each of the many processes of a test run would compile what it imports anew.
export PYTHONDONTWRITEBYTECODE =

.PHONY: demo test lint install pictures clean

demo: install
	$(BIN)/energy-lightning demo

# Two workers on two cores: more threads a process only wait for each other.
test: lint
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist loadfile

lint: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

pictures: install
	$(BIN)/python docs/make_pictures.py

install: $(VENV)/installed

# The stamp is newer than what it depends on: nothing is installed twice. Python compiles what it imports when it first
# does: to compile all of torch and transformers here would double the time this takes.
$(VENV)/installed: pyproject.toml setup.py constraints.txt
	@echo "Installing into $(VENV) (torch, lightning, transformers: a few minutes the first time) ..."
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --no-compile -c constraints.txt -e ".[accelerate,examples,test]"
	touch $@

clean:
	rm -rf $(VENV) build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache
