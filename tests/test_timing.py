"""The instrument, on a clock and decoders whose times are planted: every number is exact."""

import gc
import json

import pytest
import torch

from kvlib import GPT2, GPT2Config, decoders, machine, samples, stopwatch, timing
from kvlib.caches import StaticCache

SMALL = GPT2Config(block_size=32, vocab_size=50, n_layer=2, n_head=2, n_embd=8)


class Clock:
    """A clock that moves only when told to."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(stopwatch, "clock", clock)
    return clock


class Planted:
    """A decoder whose pass over T tokens after S stored ones takes exactly `cost(S, T)` seconds."""

    vocab_size, block_size = 7, 64

    def __init__(self, clock: Clock, cost):
        self.clock, self.cost, self.passes = clock, cost, []

    def start(self, batch, capacity):
        return 0

    def step(self, tokens, state):
        self.passes.append((state, tokens.shape[1]))
        self.clock.now += self.cost(state, tokens.shape[1])
        return torch.zeros(*tokens.shape, self.vocab_size), state + tokens.shape[1]


def sleeper(clock: Clock, durations, log: list | None = None, name: str = ""):
    """A function that takes the next of `durations` at each call, the last one again and again."""
    left = list(durations)

    def fn():
        clock.now += left.pop(0) if len(left) > 1 else left[0]
        if log is not None:
            log.append(name)

    return fn


def test_samples_are_kept_raw_with_median_quartiles_and_machine(clock):
    fn = sleeper(clock, [9, 9, 9, 1, 2, 30, 4, 5])
    found = timing.measure(fn, repeats=5, warmup=3)
    assert found.runs_s == (1, 2, 30, 4, 5) and found.warmup == 3
    assert found.median_s == 4 and found.quartiles_s == (2, 5)
    facts = {"clock_mhz": found.machine["clock_mhz"], "dtype": "float32"}
    assert found.machine == machine.facts() | facts
    written = json.loads(json.dumps(found.as_json()))
    assert written["runs_s"] == [1, 2, 30, 4, 5] and written["machine"] == found.machine


@pytest.mark.parametrize(
    ("durations", "made"),
    [
        ([1], 2),  # as fast as before: warm
        ([9, 3, 2, 1.99, 1.99], 4),  # goes on while each run beats the best by over 5%
        ([2**-i for i in range(20)], 8),  # and never for ever
    ],
)
def test_warm_up_goes_on_until_it_brings_nothing_more(clock, durations, made):
    assert timing.measure(sleeper(clock, durations), warmup=2).warmup == made


def test_no_warm_up_is_possible(clock):
    assert timing.measure(sleeper(clock, [8, 1]), warmup=0, repeats=2).runs_s == (8, 1)


def test_what_is_compared_takes_turns(clock):
    log: list = []
    fns = {name: sleeper(clock, [1], log, name) for name in "ab"}
    timing.interleave(fns, repeats=3, warmup=2)
    assert log == [*"aabb", *"ababab"]


def test_the_device_is_synchronised_before_each_reading(clock):
    """Without it the clock would be read when the work is queued, not when it is done."""

    class Queue:
        pending = 0.0

        def launch(self):
            self.pending += 3.0

        def synchronize(self):
            clock.now += self.pending
            self.pending = 0.0

    queue = Queue()
    assert timing.measure(queue.launch, device=queue).runs_s == (3.0,) * 5
    assert timing.measure(queue.launch, warmup=0).runs_s == (0.0,) * 5


def test_it_is_the_device_asked_about_that_is_waited_for(monkeypatch):
    """Without its number the current device was, and work on another was timed as done."""
    seen = []
    monkeypatch.setattr(torch.cuda, "synchronize", seen.append)
    for name in ("cuda:1", "cpu", torch.device("cuda", 2)):
        stopwatch.synchronize(name)
    assert seen == [torch.device("cuda", 1), torch.device("cuda", 2)]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here")
def test_work_on_the_last_cuda_device_is_waited_for():
    last = torch.device("cuda", torch.cuda.device_count() - 1)
    with torch.cuda.device(last):
        done = torch.cuda.Event()
        torch.cuda._sleep(10**9)  # cycles, about half a second
        done.record()
    assert not done.query()
    stopwatch.synchronize(last)
    assert done.query()
    found = timing.measure(lambda: torch.ones(1000, device=last).sum(), device=last)
    assert found.machine["device"] == str(last) and "device_name" in found.machine


def test_nothing_disturbs_and_all_is_put_back(clock):
    seen = []

    def fn():
        seen.append((gc.isenabled(), torch.is_grad_enabled()))
        raise RuntimeError

    with pytest.raises(RuntimeError):
        timing.measure(fn)
    assert seen == [(False, False)] and gc.isenabled() and torch.is_grad_enabled()


def test_tf32_is_off_unless_asked_for():
    products = torch.backends.cuda.matmul
    before = products.fp32_precision
    for asked, precision in ((False, "ieee"), (True, "tf32")):
        with stopwatch.undisturbed("cuda", asked):
            assert products.fp32_precision == precision
        assert products.fp32_precision == before


@pytest.mark.parametrize("precision", ["highest", "high", "medium"])
def test_a_precision_that_was_asked_for_is_left_alone_and_told(precision):
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(precision)
    try:
        found = timing.measure(torch.get_float32_matmul_precision, repeats=1, warmup=0)
        assert torch.get_float32_matmul_precision() == precision
        told = dict(highest=None, high="tf32", medium="bf16")[precision]
        assert found.machine.get("float32_products") == told
    finally:
        torch.set_float32_matmul_precision(before)


class Odd(decoders.KvlibDecoder):
    """Its logits have the shape that `shaped` makes of the right ones."""

    def last(self, tokens, state):
        logits, state = super().last(tokens, state)
        return self.shaped(logits), state


ODD = {
    "no axis of tokens": lambda x: x[:, 0],
    "one axis more": lambda x: x[..., None],
    "one row of two": lambda x: x[:1],
    "one id more": lambda x: torch.cat([x, x[..., :1]], -1),
    "no tensor": lambda x: [x],
}


@pytest.mark.parametrize("name", ODD)
def test_logits_of_another_shape_are_not_timed(monkeypatch, name):
    monkeypatch.setattr(Odd, "shaped", staticmethod(ODD[name]), raising=False)
    odd = Odd(GPT2(SMALL).eval(), "static")
    for run in (
        lambda: timing.sweep({"": odd}, [4], batch=2, repeats=1),
        lambda: timing.trace(odd, timing.prompts(odd, 2, 4), 2, repeats=1),
    ):
        with pytest.raises(ValueError, match="a step gave logits of shape"):
            run()


def test_nothing_to_measure_is_refused_by_name():
    small = decoders.from_kvlib(GPT2(SMALL).eval())
    prompt = timing.prompts(small, 1, 4)
    for message, run in {
        "new_tokens must be a positive integer, not 0": lambda: timing.trace(small, prompt, 0),
        r"token ids \(B, T\), not \(4,\)": lambda: timing.trace(small, prompt[0], 2),
        "not list": lambda: timing.trace(small, prompt.tolist(), 2),
        r"not \(0, 4\)": lambda: timing.profile(small, batches=[0], contexts=[4]),
        "contexts must be positive": lambda: timing.sweep({"": small}, []),
        "tokens, not .0.": lambda: timing.sweep({"": small}, [0]),
        "no decoder to measure": lambda: timing.sweep({}, [4]),
        "batch must be a positive integer": lambda: timing.sweep({"": small}, [4], batch=0),
    }.items():
        with pytest.raises(ValueError, match=message):
            run()


@pytest.mark.parametrize(
    "wrong", [dict(repeats=0), dict(repeats=2.0), dict(warmup=-1), dict(warmup=1.5)]
)
def test_counts_that_measure_nothing_are_refused(wrong):
    with pytest.raises(ValueError, match=f"{next(iter(wrong.values()))}"):
        timing.measure(lambda: None, **wrong)


def prompt(batch, length):
    return torch.ones(batch, length, dtype=torch.int64)


def test_a_trace_has_every_token_and_the_definitions_of_the_field(clock):
    decoder = Planted(clock, lambda stored, new: 10.0 if stored == 0 else float(stored))
    found = timing.trace(decoder, prompt(2, 3), 4, repeats=5, warmup=1)
    assert found.runs_s == ((10.0, 3.0, 4.0, 5.0),) * 5
    assert decoder.passes[-4:] == [(0, 3), (3, 1), (4, 1), (5, 1)]
    assert found.ttft_s == 10 and found.end_to_end_s == 22
    assert found.tpot_s == (22 - 10) / 3
    assert found.itl_s(0, 0.5, 1) == (3, 4, 5)
    assert found.tokens_per_s == 2 * 4 / 22 and found.decode_tokens_per_s == 2 * 3 / 12
    assert found.per_token_s == (10, 3, 4, 5)
    written = json.loads(json.dumps(found.as_json()))
    assert written["tpot_s"]["median"] == 4 and written["machine"] == found.machine
    assert found.warmup == written["warmup"] == 2, "one more, to see that it brings nothing"


def test_a_spike_moves_no_median(clock):
    spikes = iter([0.0] * 6 + [100.0] + [0.0] * 99)
    decoder = Planted(clock, lambda stored, new: 1.0 + next(spikes))
    found = timing.trace(decoder, prompt(1, 2), 3, repeats=5, warmup=0)
    assert (found.ttft_s, found.tpot_s, found.end_to_end_s) == (1, 1, 3)


def test_one_token_has_a_ttft_and_no_tpot(clock):
    found = timing.trace(Planted(clock, lambda *_: 2.0), prompt(1, 2), 1)
    assert found.ttft_s == 2.0 and "tpot_s" not in found.as_json()
    assert timing.table([found]).splitlines()[1].split()[4] == "-"
    for ask in (lambda: found.tpot_s, lambda: found.itl_s(0.5)):
        with pytest.raises(ValueError, match="at least 2 new tokens"):
            ask()


def test_a_generation_gives_its_tokens_too(clock):
    decoder = Planted(clock, lambda *_: 2.0)
    seconds, tokens, _ = timing.generation(decoder, prompt(2, 3), 4, "cpu")
    assert seconds == [2.0] * 4 and torch.equal(tokens, torch.zeros(2, 4, dtype=torch.int64))


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(1.2345, "1,234"), (0.0301, "30.1"), (0.026, "26.0"), (9e-4, "0.90"), (2.14e-5, "0.021")],
)
def test_a_time_is_written_with_the_digits_that_count(seconds, text):
    assert samples.ms(seconds) == text


def test_generations_of_several_decoders_take_turns_and_may_be_stopped(clock):
    fast, slow = (Planted(clock, lambda *_, cost=cost: cost) for cost in (1.0, 5.0))
    made = timing.traces({"fast": fast, "slow": slow}, prompt(1, 2), 3, repeats=4, warmup=1)
    counts = []
    for so_far in made:
        counts.append([len(trace.runs_s) for trace in so_far.values()])
        if len(counts) == 3:
            break
    made.close()
    assert counts == [[1], [1, 1], [2, 1]]
    assert so_far["fast"].tpot_s == 1 and so_far["slow"].tpot_s == 5 and gc.isenabled()


def test_tokens_past_the_decoders_positions_are_refused_before_the_first_step(clock):
    decoder = Planted(clock, lambda *_: 1.0)
    assert timing.trace(decoder, prompt(1, 60), 5, repeats=1).new_tokens == 5
    before = len(decoder.passes)
    with pytest.raises(ValueError, match="65 tokens exceed the decoder's 64"):
        timing.trace(decoder, prompt(1, 60), 6)
    with pytest.raises(ValueError, match="65"):
        timing.sweep({"": decoder}, [65])
    assert len(decoder.passes) == before


def test_a_profile_has_a_row_for_each_batch_and_context(clock):
    decoder = Planted(clock, lambda stored, new: float(new))
    rows = timing.profile(decoder, batches=(1, 3), contexts=(4, 8), new_tokens=3)
    assert [(row.batch, row.prompt_tokens) for row in rows] == [(1, 4), (3, 4), (1, 8), (3, 8)]
    assert [row.ttft_s for row in rows] == [4, 4, 8, 8]
    text = timing.table([("a", row) for row in rows])
    assert len({len(line) for line in text.splitlines()}) == 1 and "tokens/s" in text


def test_rows_of_a_batch_are_distinct_prompts_and_the_same_every_time():
    decoder = decoders.from_kvlib(GPT2(SMALL))
    tokens = timing.prompts(decoder, 4, 20)
    assert len({tuple(row) for row in tokens.tolist()}) == 4
    assert torch.equal(tokens, timing.prompts(decoder, 4, 20))


@pytest.mark.parametrize("truncates", [True, False])
def test_a_sweep_times_one_token_at_each_context(clock, truncates):
    decoder = Planted(clock, lambda stored, new: float(stored + new))
    if truncates:
        decoder.truncate = lambda state, length: length
    found = timing.sweep({"a": decoder}, [3, 9], repeats=2, warmup=0)["a"]
    assert {context: samples.runs_s for context, samples in found.items()} == {3: (3, 3), 9: (9, 9)}
    read = [new for _, new in decoder.passes if new > 1]
    assert read == ([9] if truncates else [9, 8, 8, 2, 2])


@pytest.mark.parametrize("cache", ["static", "growing", None])
def test_our_decoders_are_swept_and_traced(cache):
    model = GPT2(SMALL).eval()
    decoder = decoders.from_kvlib(model, cache)
    found = timing.sweep({"ours": decoder}, [1, 5, 32], batch=2, repeats=2)["ours"]
    assert list(found) == [1, 5, 32] and found[5].machine["dtype"] == "float32"
    traced = timing.trace(decoder, timing.prompts(decoder, 3, 6), 4, repeats=2)
    kept = {"static": 9, "growing": 9, None: 9}[cache]
    row_bytes = 2 * SMALL.n_layer * SMALL.n_embd * 4 if cache else 8  # or the token ids
    assert traced.state_bytes == 3 * kept * row_bytes


def test_a_step_in_a_sweep_reads_as_many_keys_as_it_says(monkeypatch):
    seen = []
    update = StaticCache.update
    monkeypatch.setattr(
        StaticCache, "update", lambda *a: seen.append((found := update(*a))[0].shape[2]) or found
    )
    decoder = decoders.from_kvlib(GPT2(SMALL).eval())
    timing.sweep({"ours": decoder}, [7], repeats=1, warmup=0)
    assert seen == [7, 7, 7, 7]  # filled once and then one step, in two layers


def test_the_last_positions_logits_are_those_of_a_step():
    model = GPT2(SMALL).eval()
    tokens = torch.arange(10)[None]
    for decoder in (
        *(decoders.from_kvlib(model, cache) for cache in ("static", "growing", None)),
        *(decoders.from_hf(decoders.to_hf(model), cache) for cache in ("dynamic", "static")),
    ):
        every, state = decoder.step(tokens, decoder.start(1, 12))
        alone, other = decoder.last(tokens, decoder.start(1, 12))
        assert alone.shape == (1, 1, 50) and (alone - every[:, -1:]).abs().max() < 1e-5
        every, alone = (decoder.step(tokens[:, :2], s)[0] for s in (state, other))
        assert (alone - every).abs().max() < 1e-5


def test_decoders_on_different_devices_cannot_take_turns(clock):
    one, two = Planted(clock, lambda *_: 1.0), Planted(clock, lambda *_: 1.0)
    two.device = "meta"
    with pytest.raises(ValueError, match="one device"):
        timing.sweep({"one": one, "two": two}, [4])
