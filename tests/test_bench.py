"""The bench command: its table, its files, what it refuses, and what an interrupt leaves."""

import argparse
import json
import signal

import matplotlib.pyplot as plt
import pytest
import torch

import measured
from kvlib import bench, costs, plots, stopwatch, timing
from kvlib.__main__ import main as command
from kvlib.config import GPT2Config
from kvlib.samples import Trace

NANO = GPT2Config.preset("nano")
SHORT = ["bench", "--model", "nano", "--weights", "random", "--prompt", "4", "--new", "3"]


@pytest.fixture(autouse=True)
def closed_figures():
    yield
    plt.close("all")


@pytest.fixture
def keyboard():
    """Ctrl-C reaches Python, also in a run started in the background, where a shell ignores it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def test_the_whole_command(tmp_path, capsys):
    asked = ["--batch", "1,2", "--contexts", "5,20", "--repeats", "2"]
    asked += ["--json", str(tmp_path / "recordings"), "--plot", str(tmp_path / "figures")]
    assert command([*SHORT, *asked]) == 0
    out = capsys.readouterr().out
    rows = [line.split() for line in out.splitlines() if line.startswith(bench.CACHES)]
    assert [(row[0], row[1]) for row in rows] == [
        (name, batch) for batch in "12" for name in bench.CACHES
    ]
    assert out.count("one step, batch 1, context") == 6 and "TF32 off" in out
    for name in ("trace.png", "batches.png"):
        assert (tmp_path / "figures" / name).stat().st_size > 10_000
    recording = json.loads(next((tmp_path / "recordings").glob("*.json")).read_text())
    assert recording["machine"]["dtype"] == "float32" and recording["model"] == "nano"
    assert recording["parameters"] == costs.parameters(NANO)
    assert [len(row["runs_s"]) for row in recording["profiles"]] == [2] * 6
    assert {(row["cache"], row["context"]) for row in recording["steps"]} == {
        (cache, context) for cache in bench.CACHES for context in (5, 20)
    }
    rows = recording["profiles"] + recording["steps"]
    assert not [row for row in rows if "machine" in row], "it stands once for all"
    growing = next(row for row in recording["profiles"] if row["cache"] == "growing")
    assert growing["state_bytes"] == costs.cache_bytes(NANO, 6)


def test_a_batch_that_runs_out_of_memory_leaves_the_others(tmp_path, capsys, monkeypatch):
    real = timing.generation

    def full(decoder, prompt, *rest):
        if len(prompt) == 2:
            raise torch.OutOfMemoryError("tried to allocate 9 GiB\nand a trace")
        return real(decoder, prompt, *rest)

    monkeypatch.setattr(timing, "generation", full)
    asked = ["--batch", "1,2,3", "--repeats", "1", "--json", str(tmp_path / "x.json")]
    assert command([*SHORT, *asked]) == 0
    recording = json.loads((tmp_path / "x.json").read_text())
    assert [row["batch"] for row in recording["profiles"]] == [1] * 3 + [3] * 3
    left_out = [(row["batch"], row["why"]) for row in recording["left_out"]]
    assert left_out == [(2, "tried to allocate 9 GiB")] * 3
    assert "batch 2: not measured: tried to allocate 9 GiB" in capsys.readouterr().out


@pytest.mark.parametrize(
    "asked, told",
    [
        (["--contexts", "10,300"], "300 tokens exceed the decoder's 256"),
        (["--new", "300"], "303 tokens exceed the decoder's 256"),
        (["--new", "1", "--plot", "{tmp}/p"], "--new of 2 or more"),
        (["--device", "nonsense"], "no device 'nonsense' here"),
        (["--json", "{tmp}/file/x.json"], "File exists"),
    ],
)
def test_what_would_come_to_nothing_is_refused_before_measuring(
    tmp_path, capsys, monkeypatch, asked, told
):
    monkeypatch.setattr(timing, "generation", None)  # nothing is measured
    (tmp_path / "file").touch()
    given = [part.format(tmp=tmp_path) for part in asked]
    assert command([*SHORT, "--batch", "1", *given]) != 0
    assert told in capsys.readouterr().err


@pytest.mark.parametrize("option", ["--prompt", "--new", "--repeats"])
def test_counts_are_positive(option, capsys):
    with pytest.raises(SystemExit):
        command([*SHORT, option, "0"])
    assert "'0' is no positive integer" in capsys.readouterr().err


def test_ctrl_c_keeps_what_was_measured(tmp_path, capsys, monkeypatch, keyboard):
    calls, real = [], timing.generation

    def interrupted(*args):
        calls.append(args)
        if len(calls) == 12:
            signal.raise_signal(signal.SIGINT)
        return real(*args)

    monkeypatch.setattr(timing, "generation", interrupted)
    path = tmp_path / "kept.json"
    asked = ["--cache", "static", "--batch", "1,2", "--json", str(path)]
    assert command([*SHORT, *asked]) == 130
    printed = capsys.readouterr()
    assert "interrupted" in printed.err and printed.out.count("\nstatic") >= 1
    kept = json.loads(path.read_text())["profiles"]
    assert sum(len(row["runs_s"]) for row in kept) >= 5


def test_ctrl_c_before_anything_is_measured(capsys, monkeypatch, keyboard):
    monkeypatch.setattr(stopwatch, "clock", lambda: signal.raise_signal(signal.SIGINT))
    assert command([*SHORT, "--batch", "1"]) == 130
    assert "before anything was measured" in capsys.readouterr().err


def test_a_batch_that_cannot_fit_is_refused_before_it_starts(capsys, monkeypatch):
    one = bench.needed_bytes(NANO, "growing", 1, 6)
    monkeypatch.setattr(bench, "available_bytes", lambda device: 2 * one)
    asked = ["--cache", "growing,static", "--batch", "1,3", "--repeats", "1"]
    assert command([*SHORT, *asked]) == 0
    printed = capsys.readouterr()
    assert f"batch 3 is refused: cache growing needs at least {3 * one:,} bytes" in printed.err
    assert f"{2 * one:,} are free" in printed.err
    rows = [line for line in printed.out.splitlines() if line.startswith(("growing", "static"))]
    assert [line.split()[1] for line in rows] == ["1", "1"]
    assert "cache static, batch 3: not measured: cache growing needs" in printed.out
    assert command([*SHORT, "--batch", "3"]) == 2


def test_a_batch_that_takes_too_long_with_no_cache_is_left_out_and_said(tmp_path, capsys):
    asked = ["--batch", "1,2", "--cache", "none", "--longest", "1e-9", "--repeats", "1"]
    assert command([*SHORT, *asked, "--json", str(tmp_path)]) == 0
    assert "cache none, batch 2: not measured: a run would take about" in capsys.readouterr().out
    recording = json.loads(next(tmp_path.glob("*-nano.json")).read_text())
    assert [row["batch"] for row in recording["profiles"]] == [1]
    assert [(row["cache"], row["batch"]) for row in recording["left_out"]] == [("none", 2)]
    line = "Not measured: cache none at batch 2 (a run would take about"
    assert line in measured.page([recording])


def test_how_long_a_run_takes_is_told_by_the_last_batch():
    asked = dict(model="nano", weights="random", device="cpu", form="float32", longest=40.0)
    run = bench.Bench(argparse.Namespace(cache=["none", "static"], **asked))
    run.traces = {(4, "none"): Trace(4, 1, ((5.0, 5.0),), 0, {})}
    assert list(run.affordable(16)) == ["none", "static"], "10 s for 4, 40 s for 16"
    assert list(run.affordable(17)) == ["static"]
    assert run.left_out == [dict(cache="none", batch=17, why="a run would take about 42 s")]
    run.args.longest = 0
    assert list(run.affordable(1000)) == ["none", "static"]


@pytest.mark.parametrize("cache", bench.CACHES)
def test_needed_bytes_come_from_costs(cache):
    logits = 5 * NANO.vocab_size * 4
    stored = costs.cache_bytes(NANO, 100, 5)
    right = {
        "static": logits + stored,
        "growing": logits + stored + stored // 12,  # one layer's keys, old beside new
        "none": logits + 5 * 100 * 4 * 192 * 4,
    }
    assert bench.needed_bytes(NANO, cache, 5, 100) == right[cache]


def test_the_free_memory_is_known_here():
    free = bench.available_bytes("cpu")
    assert free is None or free > 10**8


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (["--batch", "0"], "'0' is no list of positive integers"),
        (["--batch", "1,x"], "'1,x' is no list"),
        (["--cache", "paged"], "no cache 'paged'"),
    ],
)
def test_what_is_no_list_is_named(wrong, said, capsys):
    with pytest.raises(SystemExit):
        command([*SHORT, *wrong])
    assert said in capsys.readouterr().err


def test_too_many_tokens_are_refused_in_one_line(capsys):
    assert command([*SHORT, "--batch", "1", "--new", "300"]) == 2
    assert "303 tokens exceed the decoder's 256 positions" in capsys.readouterr().err


def test_a_machine_has_a_plain_file_name():
    facts = dict(processor="Intel(R) Xeon(R) CPU @ 2.00GHz", threads=2)
    assert bench.machine_name(facts) == "intel-xeon-cpu-2-00ghz-2-threads"
    assert bench.machine_name(facts | {"device_name": "NVIDIA A40"}) == "nvidia-a40"


def test_a_recording_of_another_model_form_or_kind_has_a_name_of_its_own(tmp_path):
    """All of a machine had one, so an int8 run overwrote what had been recorded of float32."""
    recording = dict(model="gpt2", form="float32", machine=dict(processor="Abacus", threads=2))
    others = [dict(model="nano"), dict(form="int8"), dict(kind="peers")]
    others += [dict(model="directory A b"), dict(kind="peers", model="nano")]
    others += [dict(machine=recording["machine"] | {"tf32": True})]
    names = [bench.save(recording | other, tmp_path).name for other in ({}, *others)]
    assert names == [
        "abacus-2-threads.json",
        "abacus-2-threads-nano.json",
        "abacus-2-threads-int8.json",
        "abacus-2-threads-peers.json",
        "abacus-2-threads-directory-a-b.json",
        "abacus-2-threads-peers-nano.json",
        "abacus-2-threads-tf32.json",
    ]


def test_one_new_token_is_recorded_and_shown(tmp_path):
    asked = ["--batch", "1", "--repeats", "1", "--cache", "static", "--json", str(tmp_path)]
    assert command([*SHORT, *asked, "--new", "1"]) == 0
    recording = json.loads(next(tmp_path.glob("*.json")).read_text())
    row = next(line for line in measured.bench(recording) if line.startswith("| static"))
    assert row.split(" | ")[3:5] == ["-", "-"] and row.split(" | ")[6] == "-"


@pytest.mark.parametrize("tokens", [2, 60])
@pytest.mark.parametrize("names", [["none"], ["static", "someone's"], list(bench.CACHES)])
def test_figures_at_their_extremes(tokens, names):
    run = tuple(0.001 * (i + 1) for i in range(tokens))
    traces = {
        (batch, name): Trace(batch, 4, (run, run), batch * 1000, {})
        for name in names
        for batch in (1, 32)
    }
    per_token = plots.per_token({name: traces[1, name] for name in names})
    assert len(per_token.axes[0].texts) == len(names)
    figure = plots.by_batch(traces)
    figure.canvas.draw()
    assert [len(ax.lines) for ax in figure.axes] == [len(names)] * 3 + [
        len([name for name in names if name != "none"])
    ]


@pytest.mark.parametrize(("batch", "context"), [(1, 16), (32, 1000)])
@pytest.mark.parametrize("measured", [{}, {(1, 16): 0.2}])
def test_the_explorers_figure_at_its_extremes(batch, context, measured):
    predicted = {(b, c): 0.01 * b * c for b in (1, 32) for c in (16, 1000)}
    figure = plots.cost_of_a_token(predicted, measured, batch, context, (0.1, 400.0), "x")
    figure.canvas.draw()
    lines = {name: [0.1] * 2 for name in bench.CACHES}
    plots.against_context(lines, [1, 1000], {"none": {1: 0.2}}).canvas.draw()


def test_the_page_of_measured_machines_is_what_the_recordings_say():
    assert measured.PAGE.read_text() == measured.page(measured.read())


def test_the_page_shows_profiles_steps_and_peers(tmp_path, capsys):
    asked = ["--batch", "2", "--contexts", "5", "--repeats", "2", "--json", str(tmp_path)]
    assert command([*SHORT, *asked]) == 0
    recording = json.loads(next(tmp_path.glob("*.json")).read_text())
    ratio = dict(work="TTFT", ratio=1.5, least=1.25, most=2.0)
    rows = [dict(engine="kvlib", **ratio), dict(engine="other", **ratio)]
    peers = dict(kind="peers", machine=recording["machine"], rounds=3, rows=rows)
    text = measured.page([recording, peers | dict(missing={"third": "not installed"})])
    assert text.count("\n## ") == 1, "one machine, one heading"
    assert "| static | 2 | " in text and "none / static" in text
    assert "decode steps read float32" in text
    assert "decode steps read int8" in measured.page([recording | dict(form="int8")])
    assert "| other | 1.50<br>1.25–2.00 |" in text and "third (not installed)" in text


def test_every_engine_is_named_with_what_it_needs(monkeypatch):
    monkeypatch.syspath_prepend(str(measured.ROOT / "benchmarks"))
    import engines
    import peers

    assert list(engines.ENGINES) == list(engines.PACKAGES)
    assert engines.missing("kvlib", "") is None
    assert "no such engine" in engines.missing("another", "")
    found = {"a": {"kvlib": [1.0, 2.0, 4.0], "x": [2.0, 3.0, 4.0]}}
    row = peers.rows(found)[1]
    assert (row["ratio"], row["least"], row["most"]) == (1.5, 1.0, 2.0)
    assert "1.50 (1.00-2.00)" in peers.table(peers.rows(found))
