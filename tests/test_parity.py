"""Correct decoders pass, wrong ones fail, and nothing a decoder does makes the instrument raise."""

import json
import os
import subprocess
import sys

import pytest
import torch

import kvlib
from kvlib import bugs, decoders, judge, parity
from kvlib.lab import pieces

POWERS = ("another implementation", "left padding", "truncate and continue")
POWERS += ("truncate to nothing", "truncate too far")


@pytest.fixture(scope="module")
def model():
    return bugs.small_model()


def past_style(model):
    """A function of tokens and past, of which the instrument sees nothing else."""

    def fn(tokens, past):
        store = kvlib.GrowingCache(model.config, len(tokens)) if past is None else past
        return model(tokens, store), store

    return decoders.from_past(fn, vocab_size=model.config.vocab_size, block_size=320)


CORRECT = {
    "kvlib static": lambda m: decoders.from_kvlib(m),
    "kvlib growing": lambda m: decoders.from_kvlib(m, "growing"),
    "kvlib none": lambda m: decoders.from_kvlib(m, None),
    "hf dynamic": lambda m: decoders.from_hf(decoders.to_hf(m)),
    "hf static": lambda m: decoders.from_hf(decoders.to_hf(m), "static"),
    "float64": lambda m: decoders.from_kvlib(m).to_float64(),
    "tuple of past": past_style,
}


@pytest.mark.parametrize("name", CORRECT)
def test_a_correct_decoder_passes_everything_it_has_the_power_for(model, name):
    report = parity.check(CORRECT[name](model))
    assert report.ok and report.failed == []
    assert [row.check for row in report.rows] == list(parity.CHECKS)
    skipped = {row.check for row in report.rows if row.verdict == "not applicable"}
    lacking = {"kvlib none": {"cache dtype"}, "tuple of past": set(POWERS)}
    assert skipped == lacking.get(name, {"another implementation"} if "hf" in name else set())


def test_a_llama_passes_with_both_caches():
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    sizes = dict(vocab_size=97, hidden_size=32, intermediate_size=64, num_hidden_layers=2)
    heads = dict(num_attention_heads=4, num_key_value_heads=2, pad_token_id=0)
    llama = LlamaForCausalLM(LlamaConfig(**sizes, **heads))
    for cache in ("dynamic", "static"):
        report = parity.check(decoders.from_hf(llama, cache))
        assert report.ok, report
        assert report["past the last position"].verdict == "not applicable"


def test_bfloat16_passes_with_the_tolerance_that_rounding_explains(model):
    import copy

    report = parity.check(decoders.from_kvlib(copy.deepcopy(model).bfloat16()))
    assert report.ok, report
    assert report.tolerance > 100 * parity.check(decoders.from_kvlib(model)).tolerance


def test_a_reference_judges_instead_of_the_decoder(model):
    """A model that is consistently wrong agrees with itself and not with another."""
    wrong = bugs.CATALOGUE["exact-gelu"].decoder(model)
    right = decoders.from_hf(decoders.to_hf(model))
    alone = parity.check(wrong, checks=["chunks", "another implementation"])
    assert alone["chunks"].verdict == "pass"
    report = parity.check(wrong, right, checks=["chunks", "another implementation"])
    assert report.failed == ["chunks", "another implementation"]
    assert parity.check(decoders.from_kvlib(model), right).ok


class Minimal:
    """The least there may be: `vocab_size`, `start` and `step`. Its logits forget the past."""

    vocab_size = 11

    def start(self, batch, capacity):
        return 0

    def step(self, tokens, state):
        return torch.nn.functional.one_hot(tokens, 11).float(), state + tokens.shape[1]


def test_logits_that_do_not_depend_on_the_past_are_reported_not_passed():
    report = parity.check(Minimal())
    assert report["premises"].verdict == "fail"
    assert "do not depend on the past" in report["premises"].meaning
    assert report["chunks"].verdict == "pass" and not report.ok
    assert report["left padding"].verdict == "not applicable"


def test_a_reference_that_disagrees_with_itself_is_reported(model):
    report = parity.check(bugs.CATALOGUE["mask-not-in-reference"].decoder(model))
    assert "disagrees with itself" in report["premises"].meaning


class Broken(Minimal):
    def __init__(self, error):
        self.error = error

    def step(self, tokens, state):
        raise self.error


@pytest.mark.parametrize("error", [RuntimeError("no luck"), KeyError("k"), TypeError("t")])
def test_a_decoder_that_raises_gets_failing_rows(error):
    report = parity.check(Broken(error))
    assert not report.ok and report.tolerance is None
    assert f"raised {type(error).__name__}" in report["chunks"].where
    assert str(report) and report._repr_html_() and json.dumps(report.as_dict())


class LastOnly(Minimal):
    def step(self, tokens, state):
        logits, state = super().step(tokens, state)
        return logits[:, -1:], state


class NotANumber(Minimal):
    def step(self, tokens, state):
        logits, state = super().step(tokens, state)
        return logits + float("nan") * (state > 1), state


@pytest.mark.parametrize("wrong", [LastOnly, NotANumber])
def test_missing_rows_and_nan_are_failures(wrong):
    assert "chunks" in parity.check(wrong()).failed


def test_an_unknown_check_is_refused_by_name(model):
    with pytest.raises(ValueError, match="no check 'chunk'"):
        parity.check(decoders.from_kvlib(model), checks=["chunk"])


def test_a_declared_tolerance_replaces_the_measured_one(model):
    bug = bugs.CATALOGUE["half-cache"].decoder(model)
    assert parity.check(bug, checks=["chunks"], dtype_tol=10.0).ok
    report = parity.check(bug, checks=["chunks"], dtype_tol=1e-9)
    assert not report.ok and report.tolerance == 1e-9 and "declared" in report.why


def test_missing_powers_never_spoil_the_verdict(model):
    report = parity.check(past_style(model), checks=POWERS)
    assert report.ok and {row.verdict for row in report.rows} == {"not applicable"}
    assert all(row.meaning for row in report.rows)


def test_a_declared_tolerance_still_finds_bugs_where_no_copy_can_be_made(model):
    store = bugs.CATALOGUE["reversed-concat"].decoder(model)

    def fn(tokens, past):
        return store.step(tokens, store.start(len(tokens), 320) if past is None else past)

    report = parity.check(decoders.from_past(fn, vocab_size=97, block_size=320))
    assert "no float64 copy" in report.why
    assert "chunks" in report.failed and report["one token at a time"].verdict == "pass"


def test_the_callers_model_is_left_as_it_was(model):
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    hooks = sum(len(block._forward_hooks) for block in model.h)
    parity.check(bugs.CATALOGUE["reversed-concat"].decoder(model))
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    assert {tensor.dtype for tensor in model.state_dict().values()} == {torch.float32}
    assert sum(len(block._forward_hooks) for block in model.h) == hooks == 0


@pytest.mark.parametrize("block", [2, 3, 5, 9, 24, 97])
def test_a_small_block_is_no_obstacle(block):
    model = kvlib.GPT2(kvlib.GPT2Config(block, 31, 1, 2, 16)).eval()
    report = parity.check(decoders.from_kvlib(model))
    assert report.ok, report


def test_random_gpt2_weights_satisfy_the_premises():
    """At GPT-2's own initialisation logits are small and attention nearly flat: still enough."""
    model = kvlib.GPT2(kvlib.GPT2Config(64, 503, 2, 4, 64)).eval()
    assert parity.check(decoders.from_kvlib(model), checks=["premises"]).ok


@pytest.mark.parametrize("chunks", [[], [3], [5, 0], [6, -1], [2, 4]])
def test_chunks_that_do_not_cover_the_tokens_are_refused(model, chunks):
    decoder = decoders.from_kvlib(model)
    with pytest.raises(ValueError, match="do not add up"):
        parity.compare(decoder, decoder, torch.zeros(1, 5, dtype=torch.int64), chunks)


def test_equal_runs_differ_nowhere(model):
    decoder = decoders.from_kvlib(model, None)
    tokens = torch.arange(7)[None]
    assert parity.compare(decoder, decoder, tokens, [7]) == (0.0, None)


def test_a_place_is_named_by_row_position_and_chunk():
    gap = torch.tensor([[0.0, 0.0, 0.0, 3.0], [0.0, 0.0, 2.0, 9.0]])
    assert judge.first_place(gap, [1, 1, 2], 1.0) == (1, 2, 2)
    assert judge.first_place(gap, [1, 1, 2], 9.0) is None


def test_infinities_that_agree_are_no_difference():
    a = torch.tensor([[[1.0, -torch.inf]]])
    assert judge.gaps(a, a.clone()).item() == 0
    assert judge.gaps(a, torch.zeros(1, 1, 2)).item() == torch.inf


def test_pieces_add_up():
    assert pieces(10, 4, 1) == [4, 1, 1, 1, 1, 1, 1]
    assert pieces(5, 9) == [5] and pieces(5, 2) == [2, 2, 1]


def command(*args, **more):
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", **more}
    line = [sys.executable, "-m", "kvlib", "parity", *args]
    return subprocess.run(line, capture_output=True, text=True, env=environment)


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A small GPT-2 and a small Llama, as `save_pretrained` writes them."""
    from transformers import LlamaConfig, LlamaForCausalLM

    folder = tmp_path_factory.mktemp("models")
    small = kvlib.GPT2(kvlib.GPT2Config(40, 97, 1, 2, 16)).eval()
    decoders.to_hf(small).save_pretrained(folder / "gpt2")
    sizes = dict(vocab_size=97, hidden_size=16, intermediate_size=32, num_hidden_layers=1)
    LlamaForCausalLM(LlamaConfig(**sizes, num_attention_heads=2)).save_pretrained(folder / "llama")
    return folder


def test_the_command_exits_0_where_all_holds_and_writes_json(saved, tmp_path):
    done = command("--model", str(saved / "gpt2"), "--json", str(tmp_path / "report.json"))
    assert done.returncode == 0 and "arning" not in done.stderr, done.stderr
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["ok"] and [row["check"] for row in report["rows"]] == list(parity.CHECKS)
    assert set(report["rows"][0]) == {"check", "verdict", "max_abs_diff", "where", "meaning"}
    assert "0 fail" in done.stdout


def test_the_command_takes_any_other_model_through_transformers(saved):
    done = command("--model", str(saved / "llama"), "--cache", "hf-static")
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("cache", ["static", "growing", "none", "hf-dynamic", "hf-static"])
def test_every_cache_can_be_named(saved, cache):
    assert parity.open_decoder(str(saved / "gpt2"), cache=cache).vocab_size == 97


def test_the_command_exits_1_where_a_check_failed(saved, monkeypatch, capsys):
    from kvlib.__main__ import main

    wrong = bugs.CATALOGUE["restart"].decoder(bugs.small_model())
    monkeypatch.setattr(parity, "open_decoder", lambda *args: wrong)
    assert main(["parity"]) == 1
    assert "fail" in capsys.readouterr().out


def test_the_command_exits_2_for_bad_input(saved):
    assert command("--model", "no-such-model").returncode == 2
    assert command("--model", str(saved / "llama"), "--cache", "growing").returncode == 2
