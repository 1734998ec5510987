# Two commands matter: `make lab` opens the course, `make test` proves that it is true.
# Every target first sets up .venv, once; `make PYTHON=/path/to/python3.13 lab` chooses a Python.

VENV := .venv/bin
READY := .venv/.ready
FIRST := $(wildcard notebooks/01_*.ipynb)

.PHONY: lab test book notebooks figures measure clean

lab: $(READY)  ## open JupyterLab on the first chapter; LAB_ARGS="--no-browser --port 8899"
	$(VENV)/jupyter lab --LabApp.default_url=/lab/tree/$(FIRST) $(LAB_ARGS)

test: $(READY)  ## everything that proves this repository true
	@sh tools/test.sh

book: $(READY)  ## build book/_build/html/index.html; any warning is an error
	$(VENV)/jupyter-book build . --path-output book --all -W -n --quiet

notebooks: $(READY)  ## run the notebooks and commit-ready their outputs; NOTEBOOKS="notebooks/01_*.ipynb"
	$(VENV)/python tools/notebooks.py $(NOTEBOOKS)

figures: $(READY)  ## draw the pictures that the README and the book use
	@for script in $(wildcard figures/*.py); do echo "$$script"; $(VENV)/python "$$script" || exit 1; done

measure: $(READY)  ## run the notebooks again, taking new measurements from this machine
	MEASURE=1 $(VENV)/python tools/notebooks.py $(NOTEBOOKS)

clean:  ## remove what was built; .venv stays (rm -r .venv to start over)
	rm -rf book/_build build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find kvlib tests tools figures notebooks -name __pycache__ -o -name .ipynb_checkpoints \
		| xargs rm -rf

# The stamp is written last, so a set-up that was cut short is done again.
$(READY): pyproject.toml constraints.txt
	@PYTHON="$(PYTHON)" sh tools/setup.sh
	@touch $@
