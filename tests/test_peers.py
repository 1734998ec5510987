"""The comparison with other engines: what fails is named, and costs nothing but itself."""

import ctypes
import gc
import json
import sys
from types import SimpleNamespace

import pytest

import measured
from kvlib import decoders, load


@pytest.fixture
def benchmarks(monkeypatch):
    """The modules engines and peers, which are programs and no package."""
    monkeypatch.syspath_prepend(str(measured.ROOT / "benchmarks"))
    import engines
    import peers

    return SimpleNamespace(engines=engines, peers=peers)


class Planted:
    """A worker that takes a second for each token, except where its turn at a work is to fail."""

    def __init__(self, speed=1.0, fails=()):
        self.speed, self.fails, self.turns = speed, fails, {}

    def run(self, batch, prompt, new):
        turn = self.turns[prompt] = self.turns.get(prompt, -1) + 1
        if (prompt, turn) in self.fails:
            raise RuntimeError(f"no room for {prompt}")
        return [self.speed] * new, list(range(new))


@pytest.mark.parametrize("turn", [0, 2], ids=["warm-up", "timed round"])
def test_an_engine_that_fails_a_work_is_left_out_of_it_alone(turn, benchmarks, capsys):
    """The first failure used to end its process, and the next work the whole comparison."""
    workers = {"kvlib": Planted(), "other": Planted(2.0, {(96, turn)}), "third": Planted(3.0)}
    found, failed = benchmarks.peers.measure(workers, ["step at 100", "step at 500"], rounds=3)
    assert failed == [dict(work="step at 100", engine="other", why="no room for 96")]
    assert list(found["step at 100"]) == ["kvlib", "third"]
    assert found["step at 500"] == {"kvlib": [1] * 3, "other": [2] * 3, "third": [3] * 3}
    assert "other cannot do step at 100: no room for 96" in capsys.readouterr().out


def test_where_the_first_fails_nothing_is_compared(benchmarks, capsys):
    """Times over whoever came next would stand in the table as times over the first's."""
    workers = {"kvlib": Planted(fails={(96, 1)}), "other": Planted()}
    found, failed = benchmarks.peers.measure(workers, ["step at 100", "TTFT 512"], rounds=1)
    assert list(found) == ["TTFT 512"] and [row["engine"] for row in failed] == ["kvlib"]
    assert "step at 100 is left out, for all are compared with kvlib" in capsys.readouterr().out


def test_the_command_compares_and_names_what_it_does_not(tmp_path, benchmarks, monkeypatch, capsys):
    asked = ["--model", "nano", "--engines", "kvlib,transformers loop,nothing", "--rounds", "1"]
    asked += ["--works", "TTFT 512,batch 4", "--json", str(tmp_path)]
    monkeypatch.setattr(sys, "argv", ["peers.py", *asked])
    assert benchmarks.peers.main() == 0
    recording = json.loads(next(tmp_path.glob("*-peers-nano.json")).read_text())
    rows = [(row["work"], row["engine"]) for row in recording["rows"]]
    assert rows == [("batch 4", "kvlib"), ("batch 4", "transformers loop")]
    assert recording["rows"][0]["ratio"] == 1 and recording["model"] == "nano"
    failures = [(row["work"], row["engine"]) for row in recording["failed"]]
    assert failures == [("TTFT 512", "kvlib"), ("TTFT 512", "transformers loop")]
    assert "256" in recording["failed"][0]["why"], "nano's positions; its process went on"
    assert "no such engine" in recording["missing"]["nothing"]
    assert recording["missing"]["transformers generate"] == "not asked for"
    assert "skipped nothing" in capsys.readouterr().out
    text = measured.page([recording])
    assert "batch 4: 20 tokens after each of 4 prompts of 19, prefill included" in text
    assert "transformers generate" in text and "kvlib at TTFT 512" in text
    assert "transformers" not in measured.front([recording]), "the README is about gpt2"


@pytest.mark.parametrize("asked", [["--works", "sleep"], ["--rounds", "0"]])
def test_a_work_that_does_not_exist_is_refused_before_any_engine_loads(
    asked, benchmarks, monkeypatch, capsys
):
    monkeypatch.setattr(sys, "argv", ["peers.py", *asked])
    with pytest.raises(SystemExit):
        benchmarks.peers.main()
    assert "of works there are TTFT 512" in capsys.readouterr().err


def test_a_process_that_ends_is_an_error_each_time_and_can_be_stopped(tmp_path, benchmarks):
    decoders.to_hf(load("nano", weights="random")).save_pretrained(tmp_path)
    worker = benchmarks.peers.Worker("kvlib", tmp_path, 1, "")
    assert [len(found) for found in worker.run(2, 5, 3)] == [3, 3]
    worker.process.kill()
    worker.process.wait()
    for _ in range(2):
        with pytest.raises(RuntimeError, match="it ended with status -9"):
            worker.run(1, 5, 3)
    worker.stop()


def test_no_engine_is_disturbed_and_errors_are_answers(benchmarks):
    def run(prompts, new):
        assert not gc.isenabled()
        return [1.0] * new, prompts[0][:new]

    found = benchmarks.engines.work(run, 2, 5, 3)
    assert found["seconds"] == [1.0] * 3 and len(found["tokens"]) == 3
    assert gc.isenabled()
    short = benchmarks.engines.work(run, 2, 5, 6)
    assert short == {"error": "RuntimeError: 5 tokens, 6 times, 6 asked for"}


def test_a_loop_of_ours_gives_a_time_and_a_token_for_each_step(benchmarks):
    model = load("nano", weights="random")
    seconds, tokens = benchmarks.engines.loop(decoders.from_kvlib(model))([[5, 6], [7, 8]], 4)
    assert len(seconds) == len(tokens) == 4 and min(seconds) > 0
    assert tokens == benchmarks.engines.loop(decoders.from_kvlib(model, None))([[5, 6]], 4)[1]


def test_llama_cpp_is_asked_for_the_last_logits_and_for_its_threads(benchmarks, monkeypatch):
    """`scores`, which was read, stays empty unless all logits are asked for."""
    given: dict = {}

    class Llama:
        ctx = "context"

        def __init__(self, path, **how):
            given.update(how, path=path)

        def reset(self):
            self.seen = []

        def eval(self, tokens):
            self.seen += tokens

        def n_vocab(self):
            return 7

    def llama_get_logits_ith(ctx, place):
        assert (ctx, place) == ("context", -1)
        return ctypes.cast((ctypes.c_float * 7)(0, 0, 0, 9), ctypes.POINTER(ctypes.c_float))

    fake = SimpleNamespace(Llama=Llama, llama_get_logits_ith=llama_get_logits_ith)
    monkeypatch.setitem(sys.modules, "llama_cpp", fake)
    run = benchmarks.engines.llama_cpp("folder", 3, "model.gguf")
    seconds, tokens = run([[1, 2]], 4)
    assert tokens == [3] * 4 and len(seconds) == 4
    assert given["n_threads"] == given["n_threads_batch"] == 3
    assert given["type_k"] == given["type_v"] == 0, "its cache in float32, as all others'"
    with pytest.raises(NotImplementedError, match="one sequence"):
        run([[1, 2], [3, 4]], 4)
