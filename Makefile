# Two commands matter: `make lab` opens the course, `make test` proves that it is true.
# Every target first sets up .venv, once; `make PYTHON=/path/to/python3.13 lab` chooses a Python.

VENV := .venv/bin
READY := .venv/.ready
FIRST := $(wildcard notebooks/01_*.ipynb)

.PHONY: lab test book pdf notebooks pages figures measure real-model mutants clean

lab: $(READY)  ## open JupyterLab on the first chapter; LAB_ARGS="--no-browser --port 8899"
	$(VENV)/jupyter lab --LabApp.default_url=/lab/tree/$(FIRST) $(LAB_ARGS)

test: $(READY)  ## everything that proves this repository true
	@sh tools/test.sh

book: $(READY)  ## build book/_build/html/index.html; any warning is an error
	$(VENV)/jupyter-book build . --path-output book --all -W -n --quiet

pdf: $(READY)  ## print the book into book/_build/book.pdf; needs Chromium, no TeX
	$(VENV)/python tools/pdf.py

notebooks: $(READY)  ## run the notebooks and commit-ready their outputs; NOTEBOOKS="notebooks/01_*.ipynb"
	$(VENV)/python tools/notebooks.py $(NOTEBOOKS)

pages: $(READY)  ## write the pages of the book that are made from code, notebooks and recordings
	@for tool in api exercises measured model_card; do $(VENV)/python tools/$$tool.py || exit 1; done

figures: $(READY)  ## draw the pictures that the README and the book use
	@for script in $(wildcard figures/*.py); do echo "$$script"; $(VENV)/python "$$script" || exit 1; done

measure: $(READY)  ## measure this machine anew, at full length; about an hour on two quiet cores
	$(VENV)/python -m kvlib bench --contexts 100,500,1000 --json figures/measured
	$(VENV)/python benchmarks/peers.py --json figures/measured
	$(VENV)/python tools/measured.py
	MEASURE=1 $(VENV)/python tools/notebooks.py $(NOTEBOOKS)

real-model: $(READY)  ## fetch a real pretrained model (98 MB, by checksum) and check it; REAL_ARGS=--fetch
	$(VENV)/python -m pip install --quiet -e ".[real]" -c constraints.txt
	$(VENV)/python tools/real_model.py $(REAL_ARGS)

mutants: $(READY)  ## change the engine in hundreds of small ways and list what no test notices
	$(VENV)/python -m pip install --quiet -e ".[mutants]" -c constraints.txt
	$(VENV)/python tools/mutants.py

clean:  ## remove what was built; .venv stays (rm -r .venv to start over)
	rm -rf book/_build build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find kvlib tests tools figures notebooks -name __pycache__ -o -name .ipynb_checkpoints \
		| xargs rm -rf

# The stamp is written last, so a set-up that was cut short is done again.
$(READY): pyproject.toml constraints.txt
	@PYTHON="$(PYTHON)" sh tools/setup.sh
	@touch $@
