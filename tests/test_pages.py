"""The pages that tools write are what the tools write now; `make pages` writes them anew."""

import json
import re
from pathlib import Path

import nbformat
import pytest

import api
import exercises
import kvlib
import measured
import model_card

ROOT = Path(__file__).parent.parent
NANO = ROOT / "kvlib" / "data" / "nano"


def card() -> str:
    return model_card.card(
        *(json.loads((NANO / name).read_text()) for name in ("training.json", "config.json"))
    )


PAGES = {
    "api": api.page,
    "exercises": lambda: exercises.page(exercises.read()),
    "measured": lambda: measured.page(measured.read()),
    "nano": card,
}


@pytest.mark.parametrize("name", PAGES)
def test_a_generated_page_is_up_to_date(name):
    committed = (ROOT / "book" / f"{name}.md").read_text(encoding="utf-8")
    assert committed == PAGES[name](), "run `make pages`"


def test_every_public_module_and_name_has_its_place_on_the_api_page():
    told = {module for modules in api.STOREYS.values() for module in modules.split()}
    assert set(kvlib.MODULES) | set(kvlib.NAMES.values()) <= told
    text = api.page()
    for name in kvlib.NAMES:
        assert f"\n#### kvlib.{name}\n" in text, name


def test_every_exercise_is_listed():
    found = exercises.read()
    for path in (ROOT / "notebooks").glob("*.ipynb"):
        assert sum(exercise.notebook == path.name for exercise in found) == 3, path.name


def test_a_chapter_is_found_to_use_what_its_cells_name():
    """Names imported from a module, under another name or not, were not found."""
    known = api.imported(
        "import kvlib, torch\nfrom kvlib import costs, load\n"
        "from kvlib.models import model as published\nfrom math import log"
    )
    assert known == dict(kvlib="kvlib", costs="costs", load="load", published="models.model")
    source = "x = log(costs.cache_bytes(load('nano').config, 1))\npublished(x), kvlib.stream, trace"
    found = {"costs", "costs.cache_bytes", "load", "models.model", "kvlib", "stream"}
    assert api.called(source, known) == found


def test_a_module_lends_what_its_all_names():
    """`timing.measure`, defined in `kvlib.stopwatch`, was on no page."""
    assert {"measure", "Trace", "trace"} <= {node.name for node in api.definitions("timing")}
    assert "warm_up" not in {node.name for node in api.definitions("timing")}


def test_every_function_that_a_chapter_imports_is_on_the_api_page():
    told = set(" ".join(api.STOREYS.values()).split())
    for path in (ROOT / "notebooks").glob("*.ipynb"):
        cells = nbformat.read(path, as_version=4).cells
        source = "\n".join(cell.source for cell in cells if cell.cell_type == "code")
        for name in api.imported(source).values():
            module = kvlib.NAMES.get(name, name.partition(".")[0])
            assert module in told | {"kvlib"}, f"{path.name} imports {name}"


def test_the_functions_of_a_chapter_stand_under_headings_of_it():
    found = api.functions("10_seeing_the_cache.ipynb")
    assert "plots.cache_step" in found["The cache in one picture"]
    assert "kvlib.StaticCache" in found["What stays and what is added"]
    names = [name for some in found.values() for name in some]
    assert len(set(names)) == len(names)
    assert all(f"\n#### {name}\n" in api.page() for name in names)


def test_the_glossary_is_in_order_and_has_the_terms_of_the_later_chapters():
    text = (ROOT / "book" / "glossary.md").read_text(encoding="utf-8")
    terms = re.findall(r"^(.+)\n: ", text, re.M)
    assert terms == sorted(set(terms), key=str.casefold)
    later = {"bfloat16", "CUDA graph", "Entropy", "Induction head", "int8", "Launch", "Regime"}
    assert later <= set(terms)


def test_stars_are_stars_outside_code_only():
    assert api.prose("a * b and `c * d`") == r"a \* b and `c * d`"


def test_the_table_of_the_readme_is_what_the_recordings_say():
    readme = measured.README.read_text(encoding="utf-8")
    assert readme == measured.renewed(readme, measured.read()), "run `make pages`"


def test_a_recording_adds_its_machine_to_the_readme():
    steps = [
        dict(context=context, cache=cache, median_s=time)
        for context, cache, time in [(8, "none", 0.1), (1000, "none", 1.5), (1000, "static", 0.05)]
    ]
    best = dict(cache="static", batch=32, tokens_per_s={"median": 123.4})
    machine = dict(processor="Abacus", threads=2)
    recording = dict(model="gpt2", steps=steps, profiles=[best], machine=machine)
    last = measured.front([recording, dict(kind="floor")]).splitlines()[-1]
    assert last == "| Abacus, 2 threads | 1,000 | 1,500 ms | 50.0 ms | 30.0 | 123 at batch 32 |"
    for other in (dict(form="int8"), dict(model="nano")):
        assert "Abacus" not in measured.front([recording | other])
    assert measured.front([recording | dict(profiles=[])]).splitlines()[-1].endswith(" | 30.0 |  |")


def test_other_engines_stand_beside_the_first_whoever_it_is():
    row = dict(work="step", ratio=1.5, least=1.25, most=2)
    rows = [row | dict(engine="ours"), row | dict(engine="slow")]
    peers = dict(kind="peers", machine=dict(processor="Abacus", threads=2), rounds=3, rows=rows)
    peers |= dict(works={"step": "a step after much"}, missing={"a": "not asked for"})
    peers |= dict(failed=[dict(work="step", engine="b", why="no room")])
    lines = measured.peers(peers)
    assert "time over that of ours" in lines[0]
    assert "step: a step after much." in lines
    assert "| slow | 1.50<br>1.25–2.00 |" in lines
    assert lines[-1] == "Not measured: a (not asked for); b at step (no room)."
    peers["rows"] += [each | dict(work="batch 32") for each in rows]
    told = measured.front([peers]).splitlines()
    assert "on Abacus, 2 threads" in told[5] and "time over that of ours" in told[5]
    assert told[-3:] == ["| engine | batch 32 |", "| :-- | --: |", "| slow | 1.50 (1.25-2.00) |"]
