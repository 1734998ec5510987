"""The pages that tools write are what the tools write now; `make pages` writes them anew."""

import json
from pathlib import Path

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
    assert api.called("from kvlib import load\nx = costs.cache_bytes(load('nano').config, 1)") == {
        "x", "costs", "costs.cache_bytes", "load", "load('nano').config",
    }  # fmt: skip


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
    rows = [dict(engine="kvlib", work="step", ratio=1), dict(engine="slow", work="step", ratio=1.5)]
    peers = dict(kind="peers", machine=machine, rows=rows)
    lines = measured.front([recording, peers]).splitlines()
    assert last in lines and lines[-1] == "| slow | 1.50 |"
    assert "Abacus, 2 threads: time over kvlib's" in lines[-6]
