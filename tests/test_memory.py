"""Measured bytes equal the formula, two witnesses agree, and temporaries inside kernels count."""

import pytest
import torch
import transformers

from kvlib import GPT2Config, __main__, allocator, costs, cuda, decoders, memory, watch
from kvlib.allocator import CachingAllocator
from test_model import TINY, tiny

LENGTHS = [1, 4, 9, 16, 17, 40]


@pytest.mark.parametrize("cache", ["growing", "static"])
@pytest.mark.parametrize("batch", [1, 3])
def test_the_formula_is_exact_and_both_witnesses_agree(cache, batch):
    report = memory.checkpoints(decoders.from_kvlib(tiny(), cache), LENGTHS, batch=batch)
    assert report.ok and len(report) == len(LENGTHS)
    for row, tokens in zip(report, LENGTHS, strict=True):
        size = LENGTHS[-1] if cache == "static" else tokens
        assert row.tokens == tokens and row.difference == 0
        assert row.held_bytes == costs.cache_bytes(TINY, size, batch)
        assert row.other_bytes == 0 and row.peak_bytes > row.held_bytes
    assert report.model_bytes == costs.weight_bytes(TINY)
    assert "difference" in str(report) and str(report).count("\n") == len(LENGTHS)


def test_float64_and_half_precision_are_measured_in_their_own_bytes():
    for dtype in (torch.float64, torch.bfloat16):
        decoder = decoders.from_kvlib(tiny().to(dtype), "growing")
        assert memory.checkpoints(decoder, [3, 5]).ok


def test_a_decoder_without_a_cache_holds_token_ids_alone():
    report = memory.checkpoints(decoders.from_kvlib(tiny(), None), [4, 8], batch=2)
    assert [row.held_bytes for row in report] == [4 * 2 * 8, 8 * 2 * 8]  # int64 ids
    assert not report.ok and report[1].seen_bytes == report[1].requested_bytes


SMALL_LLAMA = dict(
    hidden_size=32,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    intermediate_size=32,
    vocab_size=64,
    max_position_embeddings=64,
)


def hugging_face():
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**SMALL_LLAMA)).eval()


@pytest.mark.parametrize("cache", ["dynamic", "static"])
def test_a_hugging_face_model_with_grouped_heads(cache):
    report = memory.checkpoints(decoders.from_hf(hugging_face(), cache), [3, 8, 20], batch=2)
    assert [row.held_bytes >= row.formula_bytes for row in report] == [True] * 3
    tensors = 2 * 2 * 2 * 2 * 8 * 4  # layers, key and value, sequences, heads, head dim, float32
    assert report[0].formula_bytes == tensors * (20 if cache == "static" else 3)
    counters = 2 * 8 if cache == "static" else 0  # each layer counts its tokens in an int64
    assert [(row.difference, row.counter_bytes) for row in report] == [(counters, counters)] * 3
    assert report.ok and ("counters" in str(report)) == (cache == "static")


def test_a_windowed_layer_of_transformers_keeps_what_the_last_step_joined():
    config = transformers.MistralConfig(sliding_window=6, **SMALL_LLAMA)
    model = transformers.AutoModelForCausalLM.from_config(config).eval()
    report = memory.checkpoints(decoders.from_hf(model, "dynamic"), [20, 21, 22, 31])
    row = 2 * 2 * 2 * 8 * 4  # layers, key and value, heads, head dim, float32
    more = [(row_.difference - row_.counter_bytes) // row for row_ in report]
    assert more == [20 - 6, 0, 0, 5 + 9 - 6]
    assert all(row_.seen_bytes == row_.requested_bytes for row_ in report)


def test_only_a_whole_storage_of_one_integer_is_a_counter():
    ids = torch.arange(100)
    state = dict(count=torch.tensor(3), one_of_many=ids[3], scale=torch.tensor(1.0), ids=ids)
    assert memory.counters(state) == 8


def test_a_list_made_a_tensor_is_seen_by_both_witnesses():
    with watch.Watch() as seen:
        made = torch.tensor([1, 2, 3])
        again = torch.as_tensor([1.0])
        assert seen.live_bytes == 24 + 4
        assert torch.as_tensor(made) is made and seen.live_bytes == 28
        del made, again
    assert seen.live_bytes == 0


def test_a_tuple_of_past_decoder_holds_old_and_new_at_once():
    def fn(tokens, past):
        rows = torch.zeros(1, 2, tokens.shape[1], 4)
        past = [(rows, rows.clone()) for _ in range(3)] if past is None else past
        new = [(torch.cat([k, rows], 2), torch.cat([v, rows], 2)) for k, v in past]
        return torch.zeros(1, tokens.shape[1], 7), new

    decoder = decoders.from_past(fn, vocab_size=7)
    config = dict(num_hidden_layers=3, hidden_size=8, num_attention_heads=2)
    report = memory.checkpoints(decoder, [10, 20, 30], config=config)
    last, before = report[2], report[1]
    assert last.peak_bytes >= last.held_bytes + before.held_bytes


def test_dispatch_alone_misses_what_a_kernel_takes_for_itself():
    q = torch.randn(1, 4, 128, 16)
    events, peak = peaks(lambda: torch.nn.functional.scaled_dot_product_attention(q, q, q))
    with watch.Watch() as seen, torch.inference_mode():
        torch.nn.functional.scaled_dot_product_attention(q, q, q)
    assert peak > seen.peak_bytes > 0


def peaks(fn):
    """Events of fn() and the most bytes that they have alive at once."""
    with torch.inference_mode():
        events = watch.record(fn)
    size, alive, most = {}, 0, 0
    for what, key, nbytes in events:
        size[key] = nbytes if what == "malloc" else size[key]
        alive += nbytes if what == "malloc" else -size[key]
        most = max(most, alive)
    return events, most


def test_watch_counts_each_storage_once_and_forgets_it_when_it_dies():
    before = torch.zeros(100)
    with watch.Watch() as seen:
        before.view(10, 10)  # a view of what was there
        a = torch.ones(8)
        b = a[2:5].reshape(3)  # a view of a
        c = a + 1
        assert seen.live_bytes == 64 and a is not b
        assert sorted(op for _, op in seen.live.values()) == [
            "aten.add.Tensor",
            "aten.ones.default",
        ]
        del c
        assert seen.live_bytes == 32
        del a
        assert seen.live_bytes == 32  # b still holds the storage
        del b
    assert seen.live_bytes == 0 and seen.peak_bytes == 64 and not seen.live


def test_storages_are_found_wherever_a_state_keeps_them():
    class State:
        def __init__(self):
            self.rows = {"k": [torch.zeros(4)], "v": (torch.zeros(2),)}
            self.again = self.rows["k"][0][1:]
            self.model = torch.nn.Linear(3, 3)
            self.me = self

    assert sum(s.nbytes() for s in watch.storages(State())) == 24
    assert watch.storages(None) == [] and watch.storages(torch.empty(0)) == []


def test_a_recorded_run_replays_in_the_simulator():
    decoder = decoders.from_kvlib(tiny(), "growing")
    tokens = torch.zeros(1, 6, dtype=torch.int64)

    def run():
        state = decoder.start(1, 6)
        for i in range(6):
            state = decoder.step(tokens[:, i : i + 1], state)[1]

    events = watch.record(run)
    books, held = CachingAllocator(), {}
    allocator.replay(books, events, held)
    assert books.requested_bytes == 0 and not held  # everything that was taken was freed
    assert books.peak_requested_bytes > costs.cache_bytes(TINY, 6)


def test_the_workspace_of_the_matrix_library():
    assert memory.workspace_bytes() == 8_519_680
    assert memory.workspace_bytes(":4096:8") == 32 << 20
    assert memory.workspace_bytes(":0:0") == 0


def test_cuda_snapshot_is_split_by_address():
    class Storage:
        def __init__(self, address):
            self.address = address

        def data_ptr(self):
            return self.address

    def block(address, size, state="active_allocated"):
        return dict(address=address, size=512, requested_size=size, state=state)

    segments = [
        dict(blocks=[block(0, 100), block(512, 8), block(1024, 300, "inactive")]),
        dict(blocks=[block(4096, 200)]),
    ]
    groups = dict(model=[Storage(0)], cache=[Storage(4096)])
    parts = memory.cuda_parts(segments, **groups)
    assert parts == dict(model=100, cache=200, other=8)


def test_cuda_history_becomes_events_and_segments():
    history = [
        dict(action="segment_alloc", addr=0, size=2 << 20),
        dict(action="alloc", addr=0, size=100),
        dict(action="free_requested", addr=0, size=100),
        dict(action="free_completed", addr=0, size=100),
        dict(action="alloc", addr=0, size=8),
        dict(action="free_completed", addr=77, size=8),  # taken before the recording began
    ]
    events, segments = memory.cuda_trace(history)
    assert segments == [2 << 20]
    books, held = CachingAllocator(), {}
    allocator.replay(books, events, held)
    assert books.requested_bytes == 8 and books.reserved_bytes == 2 << 20


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here")
@pytest.mark.parametrize("cache", ["growing", "static"])
def test_on_a_cuda_device(cache):
    decoder = decoders.from_kvlib(tiny().to("cuda"), cache)
    report = memory.checkpoints(decoder, LENGTHS)
    assert report.ok and report[0].reserved_bytes % (2 << 20) == 0


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here")
def test_simulator_against_this_device():
    decoder = decoders.from_kvlib(tiny().to("cuda"), "growing")
    recorded = cuda.record_cuda(lambda: memory.checkpoints(decoder, LENGTHS))
    events, segments = memory.cuda_trace(recorded["trace"])
    books = CachingAllocator()
    allocator.replay(books, events, {})
    assert [segment.size for segment in books.segments] == segments


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device here")
def test_a_recording_needs_a_cuda_device(tmp_path, capsys):
    assert __main__.main(["memory", "--record", str(tmp_path / "x.json")]) == 2
    assert "no CUDA device" in capsys.readouterr().err


def test_resident_memory_is_more_than_the_tensors():
    resident = memory.resident_bytes()
    assert resident is None or resident > 10**7


SMALL = decoders.from_kvlib(tiny(), "growing")
BAD = [
    (lambda: memory.checkpoints(SMALL, []), "no lengths"),
    (lambda: memory.checkpoints(SMALL, None), "None"),
    (lambda: memory.checkpoints(SMALL, 5), "5"),
    (lambda: memory.checkpoints(SMALL, [0]), "0"),
    (lambda: memory.checkpoints(SMALL, [-2]), "-2"),
    (lambda: memory.checkpoints(SMALL, [4, 4]), "4 after 4"),
    (lambda: memory.checkpoints(SMALL, [8, 4]), "4 after 8"),
    (lambda: memory.checkpoints(SMALL, [2.5]), "2.5"),
    (lambda: memory.checkpoints(SMALL, [4, 10**6]), "block_size"),
    (lambda: memory.checkpoints(SMALL, [4], batch=0), "batch"),
    (lambda: memory.checkpoints(SMALL, [4], config=dict()), "layers"),
    (lambda: memory.checkpoints(SMALL, [4], dtype_bytes=-4), "dtype_bytes"),
    (lambda: memory.workspace_bytes(""), "form"),
    (lambda: memory.workspace_bytes("4096:8"), "4096:8"),
    (lambda: memory.workspace_bytes(":4096"), "form"),
    (lambda: memory.workspace_bytes(":4096:2:16"), "form"),
    (lambda: memory.workspace_bytes(":a:b"), "form"),
    (lambda: memory.workspace_bytes(":-1:8"), "form"),
]


@pytest.mark.parametrize(("call", "named"), BAD)
def test_bad_requests_name_the_value(call, named):
    with pytest.raises(ValueError, match=named.replace(".", r"\.")):
        call()


def test_the_published_figures():
    assert costs.cache_bytes_per_token(GPT2Config()) == 73_728
    assert costs.cache_bytes(GPT2Config(), 1024) == 75_497_472
    assert memory.workspace_bytes() + 8 == 8_519_688
