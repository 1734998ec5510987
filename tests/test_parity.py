"""Correct decoders pass, wrong ones fail, and nothing a decoder does makes the instrument raise."""

import copy
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import kvlib
from kvlib import bugs, decoders, judge, parity
from kvlib.decoders import KvlibDecoder
from kvlib.lab import Lab, pieces

BOOK = Path(__file__).parent.parent / "book" / "bring-your-own.md"

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


class NoRun(KvlibDecoder):
    """A decoder whose copy in double precision is made and cannot run."""

    def to_float64(self):
        return Broken(RuntimeError("no kernel for double"))


CORRECT = {
    "kvlib static": lambda m: decoders.from_kvlib(m),
    "kvlib growing": lambda m: decoders.from_kvlib(m, "growing"),
    "kvlib none": lambda m: decoders.from_kvlib(m, None),
    "hf dynamic": lambda m: decoders.from_hf(decoders.to_hf(m)),
    "hf static": lambda m: decoders.from_hf(decoders.to_hf(m), "static"),
    "float64": lambda m: decoders.from_kvlib(m).to_float64(),
    "no copy that runs": lambda m: NoRun(m, "static"),
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


class Joined128(KvlibDecoder):
    def step(self, tokens, state, padding=None):
        if state.length or not 96 < tokens.shape[1] <= self.block_size:
            return super().step(tokens, state, padding)
        found = []
        for piece in tokens.split(128, dim=1):
            logits, part = super().step(piece, self.start(*piece.shape))
            for layer in range(len(part.keys)):
                state.update(layer, part.keys[layer], part.values[layer])
            state.advance(piece.shape[1])
            found.append(logits)
        return torch.cat(found, dim=1), state


class DropsPadding(kvlib.StaticCache):
    def truncate(self, length):
        super().truncate(length)
        self.padding = None


class WipesOtherRows(kvlib.StaticCache):
    def truncate(self, length):
        super().truncate(length)
        self.keys[:, 1:].zero_()


class RollsBatch(kvlib.GrowingCache):
    def update(self, layer, k, v):
        if self.keys[layer].shape[2] < 64 <= self.keys[layer].shape[2] + k.shape[2]:
            self.keys[layer] = self.keys[layer].roll(1, 0)
        return super().update(layer, k, v)


class ChangesPadding(KvlibDecoder):
    def step(self, tokens, state, padding=None):
        found = super().step(tokens, state, None if padding is None else padding.clone())
        if padding is not None:
            padding += 1
        return found


MISSED = {
    "a prompt of more than 96 tokens": (Joined128, "to the last position"),
    "padding after a rollback": (DropsPadding, "left padding"),
    "a rollback of several rows": (WipesOtherRows, "left padding", "truncate and continue"),
    "a resize of several rows": (RollsBatch, "to the last position"),
    "padding written to": (ChangesPadding, "caller's tensors"),
}


@pytest.mark.parametrize("name", MISSED)
def test_what_only_a_long_a_padded_or_a_wide_run_shows_is_found(model, name):
    """Each of these passed every check once."""
    wrong, *checks = MISSED[name]
    is_cache = not issubclass(wrong, KvlibDecoder)
    report = parity.check(bugs.CacheDecoder(model, wrong) if is_cache else wrong(model, "static"))
    assert report.failed == checks, report


class Masked(KvlibDecoder):
    """Ids from `first` on pad the vocabulary: their logits are one number."""

    fill, first = 0.0, 90  # None: the lowest that the logits' type has

    def run(self, *args, **kwargs):
        logits, state = super().run(*args, **kwargs)
        return self.masked(logits), state

    def full(self, tokens):
        return self.masked(super().full(tokens))

    def masked(self, logits):
        pads = torch.arange(logits.shape[-1]) >= self.first
        fill = torch.finfo(logits.dtype).min if self.fill is None else self.fill
        return torch.where(pads, torch.tensor(fill, dtype=logits.dtype), logits)

    def peer(self):
        raise NotImplementedError("no other masks its vocabulary")


class MaskedHalf(Masked):
    def start(self, batch, capacity):
        kind, dtype = bugs.CATALOGUE["half-cache"].part, self.model.wte.weight.dtype
        return kind(self.model.config, batch, capacity, dtype=dtype)


@pytest.mark.parametrize("fill", [-1e4, -1e9, torch.finfo(torch.float32).min, -torch.inf, None])
@pytest.mark.parametrize("first", [90, 30])
def test_ids_that_pad_a_vocabulary_do_not_widen_the_tolerance(model, monkeypatch, fill, first):
    monkeypatch.setattr(Masked, "fill", fill)
    monkeypatch.setattr(Masked, "first", first)
    report = parity.check(Masked(model, "static"))
    assert report.ok and report.tolerance < 1e-4, report
    assert "one token at a time" in parity.check(MaskedHalf(model, "static")).failed
    declared = parity.check(past_of(Masked(model, "static")), checks=["premises"])
    assert declared.ok and declared.tolerance < 1e-3


def test_logits_that_are_no_real_numbers_are_refused(model):
    """Compared as if they were, whole numbers passed most checks: their rounding is a tolerance."""

    class Whole(Masked):
        def masked(self, logits):
            return logits.mul(10).long()

    failed = [row for row in parity.check(Whole(model, "static")).rows if row.verdict == "fail"]
    assert len(failed) > 10
    assert all("logits are torch.int64" in row.where for row in failed)


def past_of(decoder):
    """`decoder` as a function of tokens and past."""

    def fn(tokens, past):
        return decoder.step(tokens, decoder.start(len(tokens), 320) if past is None else past)

    return decoders.from_past(fn, vocab_size=97, block_size=320)


def test_the_labs_own_objection_is_no_refusal(model):
    """Logits of the last token alone were once taken for an error past the end."""

    def last_only(tokens, past):
        store = kvlib.GrowingCache(model.config, len(tokens)) if past is None else past
        return model(tokens, store, last_only=True), store

    decoder = decoders.from_past(last_only, vocab_size=97, block_size=320)
    report = parity.check(decoder, decoders.from_kvlib(model))
    assert {"past the last position", "past the capacity"} <= set(report.failed)
    assert "not for the last alone" in report["chunks"].where


def test_another_vocabulary_is_not_called_a_missing_row(model):
    decoder = decoders.from_past(past_of(KvlibDecoder(model, "static")).fn, vocab_size=90)
    where = parity.check(decoder, checks=["chunks"])["chunks"].where
    assert "vocab_size is 90" in where and "97 logits" in where and "last alone" not in where


class FailsEarly(KvlibDecoder):
    """Past its first eight tokens it fails for a reason of its own, which is no refusal."""

    def step(self, tokens, state, padding=None):
        if tokens.shape[1] > 300:
            raise RuntimeError("out of luck")
        return super().step(tokens, state, padding)


def test_only_an_error_on_the_overflowing_token_is_a_refusal(model):
    row = parity.check(FailsEarly(model, "static"))["past the last position"]
    assert row.verdict == "fail" and "out of luck" in row.where


def test_a_decoder_may_declare_another_policy_at_its_limit(model):
    rolling = bugs.CATALOGUE["silent-restart"].decoder(model)
    rolling.on_limit = "restart"
    row = parity.check(rolling)["past the last position"]
    assert row.verdict == "not applicable" and "on_limit='restart'" in row.meaning


class Float32Logits(KvlibDecoder):
    """A model in fewer bits that returns its logits in float32, as many do."""

    def run(self, *args, **kwargs):
        logits, state = super().run(*args, **kwargs)
        return self.widened(logits), state

    def full(self, tokens):
        return self.widened(super().full(tokens))

    def widened(self, logits):
        return logits if logits.dtype == torch.float64 else logits.float()

    def peer(self):
        raise NotImplementedError


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_the_tolerance_follows_the_type_that_the_model_computes_in(model, dtype):
    narrow = copy.deepcopy(model).to(dtype)
    right = decoders.from_kvlib(model)
    assert parity.check(Float32Logits(narrow, "static")).ok
    assert parity.check(past_of(KvlibDecoder(narrow, "static"))).ok
    for decoder in (decoders.from_kvlib(narrow), past_of(KvlibDecoder(narrow, "static"))):
        report = parity.check(decoder, right)
        assert report.ok, report
    wrong = parity.check(bugs.CATALOGUE["reversed-concat"].decoder(narrow), right)
    assert "chunks" in wrong.failed


def test_a_decoder_may_say_what_it_computes_in(model):
    decoder = past_of(Float32Logits(copy.deepcopy(model).bfloat16(), "static"))
    decoder.dtype = torch.bfloat16
    assert parity.check(decoder).ok


@pytest.mark.parametrize("checks", [["chunks"], ["two states", "premises"]])
def test_the_tolerance_is_measured_before_the_first_verdict(model, checks):
    """It once grew from check to check, so that a row could fail below what was printed."""
    whole = parity.check(decoders.from_kvlib(model)).tolerance
    assert parity.check(decoders.from_kvlib(model), checks=checks).tolerance == whole


def test_everything_a_check_reads_is_measured_beforehand(model):
    lab = Lab(decoders.from_kvlib(model))
    known = set(lab.judge.known)
    assert lab.judge.distance > 0
    for name in set(parity.CHECKS) - {"premises", "greedy tokens"}:
        parity.CHECKS[name].function(lab)
    assert set(lab.judge.known) == known
    texts = [lab.texts.long, *lab.texts.beside()]
    assert known == {judge.key(tokens) for tokens in texts}


class NaNInDecode(KvlibDecoder):
    def step(self, tokens, state, padding=None):
        logits, state = super().step(tokens, state, padding)
        return logits + (torch.nan if tokens.shape[1] == 1 else 0), state


def test_nan_is_a_failure_and_valid_json(model):
    """JSON has no word for it: a report with one could not be read back."""
    report = parity.check(NaNInDecode(model, "static"), checks=["premises", "one token at a time"])
    row = report["one token at a time"]
    assert row.verdict == "fail" and row.max_abs_diff != row.max_abs_diff
    plain = json.loads(json.dumps(report.as_dict(), allow_nan=False))
    assert plain["rows"][1]["max_abs_diff"] is None and plain["rows"][1]["verdict"] == "fail"


def test_a_reference_of_nan_passes_nothing(model):
    broken = copy.deepcopy(model)
    with torch.no_grad():
        broken.wpe.weight[100] = torch.nan
    report = parity.check(decoders.from_kvlib(broken))
    assert report["premises"].verdict == "fail" and report["chunks"].verdict == "fail"
    assert json.dumps(report.as_dict(), allow_nan=False)


def test_the_layer_is_not_named_where_the_step_reads_other_weights(model):
    try:
        decoder = decoders.from_kvlib(model, form="float16")
        row = parity.check(decoder, checks=["one token at a time"])["one token at a time"]
    except (RuntimeError, ValueError) as error:
        pytest.skip(f"no float16 product here: {error}")
    assert row.verdict == "fail" and "layer" not in row.where


def test_the_layer_is_found_in_bfloat16_too(model):
    wrong = bugs.CATALOGUE["off-by-one"].decoder(copy.deepcopy(model).bfloat16())
    row = parity.check(wrong, checks=["chunks"])["chunks"]
    assert row.where.endswith("starts in the embeddings")


def test_rounding_is_not_taken_for_a_layer_that_goes_wrong(model):
    """In bfloat16 every layer is off by more than float32 allows, and none is wrong."""
    right = decoders.from_kvlib(model)
    for dtype in (torch.float32, torch.bfloat16):
        wrong = bugs.CATALOGUE["exact-gelu"].decoder(copy.deepcopy(model).to(dtype))
        row = parity.check(wrong, right, checks=["chunks"], dtype_tol=1e-6)["chunks"]
        exact = dtype == torch.float32
        end = "in no layer of its own: the reference differs" if exact else "chunk 0"
        assert row.verdict == "fail" and row.where.endswith(end)


def test_a_decoder_with_our_model_and_no_cache_of_ours_gets_a_place(model):
    class Other:
        vocab_size, block_size = 97, 320

        def __init__(self):
            self.inner = bugs.CATALOGUE["restart"].decoder(model)
            self.model, self.start, self.step = model, self.inner.start, self.inner.step

    row = parity.check(Other(), decoders.from_kvlib(model), checks=["chunks"])["chunks"]
    assert row.where.startswith("row 0, position") and "layer" not in row.where


def test_the_report_says_how_many_tokens_were_tested(model):
    assert "tested to 320 tokens" in parity.check(decoders.from_kvlib(model)).summary()
    endless = parity.check(past_style(model), checks=["chunks"])
    assert endless.length == 320 and "tested to 320 tokens" in str(endless)


def snippets() -> list[str]:
    """The programs of the page on bringing one's own model."""
    return re.findall(r"```python\n(.*?)```", BOOK.read_text(), re.S)


@pytest.mark.parametrize("number, told", [*enumerate(["0 fail"] * 3), (3, "TPOT")])
def test_the_programs_of_bring_your_own_run(saved, model, number, told, capsys):
    small = kvlib.load(str(saved / "gpt2"))
    source = snippets()[number].replace("path/to/a/model", str(saved / "llama"))
    source = source.replace("50257, 1024", "97, 40").replace("=50257", "=97")
    source = source.replace("=1024", "=40")

    def my_model(tokens, past):
        past = kvlib.GrowingCache(small.config, len(tokens)) if past is None else past
        logits = small(tokens, past)
        return (logits, past) if number == 1 else logits

    def my_cache(batch, capacity):
        return kvlib.StaticCache(small.config, batch, capacity)

    exec(source, {"my_model": my_model, "MyCache": my_cache})
    assert told in capsys.readouterr().out
    assert len(snippets()) == 4


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

    torch.manual_seed(0)
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


def test_a_checkpoint_in_half_precision_is_judged_in_float32(saved, tmp_path):
    """Its own rounding would hide what is smaller."""
    from transformers import AutoModelForCausalLM

    for name in ("llama", "gpt2"):
        half = AutoModelForCausalLM.from_pretrained(saved / name, dtype=torch.bfloat16)
        half.save_pretrained(tmp_path / name)
        decoder = parity.open_decoder(str(tmp_path / name), cache="hf-dynamic")
        assert {p.dtype for p in decoder.model.parameters()} == {torch.float32}


def test_the_command_exits_1_where_a_check_failed(saved, monkeypatch, capsys):
    from kvlib.__main__ import main

    wrong = bugs.CATALOGUE["restart"].decoder(bugs.small_model())
    monkeypatch.setattr(parity, "open_decoder", lambda *args: wrong)
    assert main(["parity"]) == 1
    assert "fail" in capsys.readouterr().out


def test_the_command_exits_2_for_bad_input(saved):
    assert command("--model", "no-such-model").returncode == 2
    assert command("--model", str(saved / "llama"), "--cache", "growing").returncode == 2
