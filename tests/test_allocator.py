"""The simulator keeps the rules of PyTorch's CUDA caching allocator, and its own books."""

import json
import re
from pathlib import Path

import matplotlib.pyplot as plt
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from kvlib import GPT2Config, allocator, costs, memory, plots
from kvlib.allocator import CachingAllocator, OutOfMemory, generation, replay
from kvlib.models import model

KIB, MIB = 1 << 10, 1 << 20
RECORDINGS = sorted((Path(__file__).parent.parent / "figures" / "measured").glob("*-memory.json"))


def test_name_in_memory():
    assert memory.CachingAllocator is CachingAllocator


@pytest.mark.parametrize(
    ("requested", "block", "segment"),
    [
        (1, 512, 2 * MIB),
        (8, 512, 2 * MIB),
        (512, 512, 2 * MIB),
        (513, 1024, 2 * MIB),
        (3072, 3072, 2 * MIB),
        (MIB, MIB, 2 * MIB),
        (MIB + 1, MIB + 512, 20 * MIB),
        (8_519_680, 8_519_680, 20 * MIB),
        (10 * MIB - 512, 10 * MIB - 512, 20 * MIB),
        (10 * MIB - 511, 10 * MIB, 10 * MIB),
        (10 * MIB + 1, 10 * MIB + 512, 12 * MIB),
        (11 * MIB + 1, 12 * MIB, 12 * MIB),  # what is left over is under 1 MiB: not split off
        (37_748_736, 37_748_736, 36 * MIB),
        (20 * MIB + 1, 20 * MIB + 512, 22 * MIB),
    ],
)
def test_sizes_of_blocks_and_segments(requested, block, segment):
    books = CachingAllocator()
    assert books.malloc(requested).size == block
    assert (books.requested_bytes, books.allocated_bytes) == (requested, block)
    assert books.reserved_bytes == segment


def test_constants_are_those_of_the_installed_torch():
    header = Path(torch.__file__).parent / "include" / "c10" / "core" / "AllocatorConfig.h"
    if not header.exists():
        pytest.skip(f"this torch ships no {header.name}")
    text = header.read_text()
    stated = dict(re.findall(r"constexpr size_t (k\w+) = (\d+);", text))
    assert int(stated["kMinBlockSize"]) == allocator.MIN_BLOCK
    assert int(stated["kSmallSize"]) == allocator.SMALL_REQUEST
    assert int(stated["kSmallBuffer"]) == allocator.SMALL_SEGMENT
    assert int(stated["kMinLargeAlloc"]) == allocator.LARGE_REQUEST
    assert int(stated["kRoundLarge"]) == allocator.LARGE_ROUND
    large = re.search(r"large_segment_size_\{(\d+)\}", text)
    assert large and int(large[1]) == allocator.LARGE_SEGMENT


def test_small_blocks_split_down_to_one_unit_and_large_ones_only_above_a_mebibyte():
    books = CachingAllocator()
    books.malloc(MIB)
    books.malloc(MIB - 512)
    last = books.malloc(1)  # the 512 bytes that were left of the segment
    assert (last.size, books.reserved_bytes) == (512, 2 * MIB)
    books = CachingAllocator()
    nine = books.malloc(9 * MIB)
    rest = books.malloc(10 * MIB - 512)  # 11 MiB were left: 1 MiB + 512 bytes remain and split
    assert (nine.size, rest.size) == (9 * MIB, 10 * MIB - 512)
    assert len(books.segments) == 1 and len(books.segments[0].blocks) == 3
    books.free(rest)
    again = books.malloc(10 * MIB)  # exactly 1 MiB would remain: not split
    assert again.size == 11 * MIB and len(books.segments) == 1


def test_large_pool_never_serves_a_small_request():
    books = CachingAllocator()
    books.free(books.malloc(5 * MIB))
    books.malloc(1000)
    assert [segment.size for segment in books.segments] == [20 * MIB, 2 * MIB]


def test_best_fit_takes_the_smallest_then_the_lowest():
    books = CachingAllocator()
    blocks = [books.malloc(size * KIB) for size in (300, 1, 100, 1, 200, 1, 100, 1)]
    for i in (0, 2, 4, 6):
        books.free(blocks[i])
    assert books.malloc(90 * KIB).offset == blocks[2].offset  # the first of the two of 100 KiB
    assert books.malloc(150 * KIB).offset == blocks[4].offset
    assert books.malloc(250 * KIB).offset == blocks[0].offset


def test_free_neighbours_merge_on_both_sides():
    books = CachingAllocator()
    a, b, c, d = (books.malloc(100 * KIB) for _ in range(4))
    books.free(a)
    books.free(c)
    assert len(books.segments[0].blocks) == 5
    books.free(b)
    assert [block.size for block in books.segments[0].blocks][:2] == [300 * KIB, 100 * KIB]
    books.free(d)
    assert books.segments[0].free and books.allocated_bytes == 0
    assert books.reserved_bytes == 2 * MIB


def test_freed_memory_stays_reserved_until_the_cache_is_emptied():
    books = CachingAllocator()
    kept, gone = books.malloc(30 * MIB), books.malloc(40 * MIB)
    books.free(gone)
    assert (books.allocated_bytes, books.reserved_bytes) == (30 * MIB, 70 * MIB)
    assert books.fragmentation == pytest.approx(40 / 70)
    assert books.empty_cache() == 40 * MIB and books.reserved_bytes == 30 * MIB
    books.free(kept)
    assert books.empty_cache() == 30 * MIB and books.reserved_bytes == 0
    assert books.fragmentation == 0 and books.peak_reserved_bytes == 70 * MIB


def test_a_segment_with_one_live_block_cannot_be_given_back():
    books = CachingAllocator()
    first = books.malloc(5 * MIB)
    books.malloc(2 * MIB)
    books.free(first)
    assert books.empty_cache() == 0 and books.reserved_bytes == 20 * MIB


def test_out_of_memory_frees_what_it_can_first_and_changes_nothing_else():
    books = CachingAllocator(64 * MIB)
    books.free(books.malloc(40 * MIB))
    kept = books.malloc(41 * MIB)  # fits only once the segment of 40 MiB went back
    assert books.reserved_bytes == 42 * MIB
    with pytest.raises(OutOfMemory, match="24117248.*67108864"):
        books.malloc(23 * MIB)
    assert (books.allocated_bytes, books.reserved_bytes) == (kept.size, 42 * MIB)


def test_fragmentation_alone_can_exhaust_a_device():
    books = CachingAllocator(40 * MIB)
    blocks = [books.malloc(5 * MIB) for _ in range(8)]
    for block in blocks[::2]:
        books.free(block)
    assert books.reserved_bytes - books.allocated_bytes == 20 * MIB
    with pytest.raises(OutOfMemory):
        books.malloc(6 * MIB)


@given(st.lists(st.tuples(st.booleans(), st.integers(1, 30 * MIB)), max_size=60))
def test_books_stay_balanced(steps):
    books, held = CachingAllocator(), []
    for take, size in steps:
        if take or not held:
            held.append(books.malloc(size))
        else:
            books.free(held.pop(size % len(held)))
        assert books.requested_bytes == sum(block.requested for block in held)
        assert books.allocated_bytes == sum(block.size for block in held)
        assert books.reserved_bytes == sum(segment.size for segment in books.segments)
        for segment in books.segments:
            ends = [block.offset + block.size for block in segment.blocks]
            assert [block.offset for block in segment.blocks] == [0, *ends[:-1]]
            assert ends[-1] == segment.size
            free = [block.requested is None for block in segment.blocks]
            assert not any(a and b for a, b in zip(free, free[1:], strict=False))
    for block in held:
        books.free(block)
    assert books.allocated_bytes == 0
    books.empty_cache()
    assert books.reserved_bytes == 0


@pytest.mark.parametrize("cache", ["growing", "static"])
def test_generation_ends_with_what_the_formula_says(cache):
    config = GPT2Config(block_size=64, n_layer=2, n_head=2, n_embd=32)
    books, held, most = CachingAllocator(), {}, 0
    for tokens, events in enumerate(generation(config, 8, 20, cache, batch=3), start=8):
        replay(books, events, held)
        size = tokens if cache == "growing" else 28
        assert books.requested_bytes == costs.cache_bytes(config, size, 3)
        most = max(most, books.peak_requested_bytes - books.requested_bytes)
    assert most == (0 if cache == "static" else costs.cache_bytes(config, 27, 3) // 4)


def test_generation_of_a_latent_cache_asks_for_two_tensors_of_their_own_sizes():
    config = model("DeepSeek-V3")["config"]
    growing = next(generation(config, 10, 1, dtype_bytes=2))
    assert [nbytes for _, _, nbytes in growing] == [10 * 512 * 2, 10 * 64 * 2] * 61
    static = next(generation(config, 10, 1, "static", dtype_bytes=2))
    assert [nbytes for _, _, nbytes in static] == [61 * 11 * 512 * 2, 61 * 11 * 64 * 2]


def test_generation_skips_layers_that_share_a_cache():
    config = dict(num_hidden_layers=3, hidden_size=8, num_attention_heads=2, num_kv_shared_layers=2)
    for cache, tokens in (("growing", 4), ("static", 5)):
        events = next(generation(config, 4, 1, cache))
        assert [nbytes for _, _, nbytes in events] == [tokens * 8 * 4] * 2


def test_growing_past_a_mebibyte_carries_unsplit_remainders():
    """A row of GPT-2's keys is six units of 512 bytes, so only unsplit remainders can differ."""
    books, held, extra = CachingAllocator(), {}, {}
    for tokens, events in enumerate(generation(GPT2Config(), 64, 500), start=64):
        replay(books, events, held)
        extra[tokens] = books.allocated_bytes - books.requested_bytes
    assert max(value for tokens, value in extra.items() if tokens <= 341) == 0
    assert 0 < max(extra.values()) <= 24 * MIB


@pytest.mark.parametrize("requests", [0, 1, 44])
@pytest.mark.parametrize("cache", ["growing", "static"])
def test_the_picture_of_its_segments_at_the_extremes(cache, requests):
    plots.use_style()
    books = CachingAllocator()
    replay(books, sum(generation(GPT2Config(n_layer=2), 339, 5, cache), [])[:requests], {})
    figure = plots.allocator_segments(books.segments, 20 * MIB, "title")
    figure.canvas.draw()
    in_use = sum(b.requested is not None for s in books.segments for b in s.blocks)
    assert len(figure.axes[0].texts) == in_use
    assert len(books.segments) <= 5  # the picture has room for five
    plt.close(figure)


@pytest.mark.parametrize("file", RECORDINGS or [None], ids=lambda file: file and file.stem)
def test_recording_of_a_real_device(file):
    if file is None:
        pytest.skip("no recording of a CUDA device in figures/measured yet")
    recorded = json.loads(file.read_text())
    events, segments = memory.cuda_trace(recorded["trace"])
    books = CachingAllocator()
    replay(books, events, {})
    assert [segment.size for segment in books.segments] == segments
    assert books.reserved_bytes == recorded["reserved_bytes"]
    assert books.allocated_bytes == recorded["allocated_bytes"]
    assert books.requested_bytes == recorded["requested_bytes"]


def freed_twice():
    books = CachingAllocator()
    block = books.malloc(10)
    books.free(block)
    books.free(block)


BAD = [
    (lambda: CachingAllocator(0), ValueError, "capacity_bytes"),
    (lambda: CachingAllocator(-5), ValueError, "-5"),
    (lambda: CachingAllocator(1.5), ValueError, "1.5"),
    (lambda: CachingAllocator().malloc(0), ValueError, "nbytes"),
    (lambda: CachingAllocator().malloc(-1), ValueError, "-1"),
    (lambda: CachingAllocator().malloc(3.0), ValueError, "3.0"),
    (lambda: CachingAllocator().malloc(2**63), ValueError, str(2**63)),
    (freed_twice, ValueError, "once"),
    (lambda: CachingAllocator().free(CachingAllocator().malloc(5)), ValueError, "not in use"),
    (lambda: CachingAllocator(MIB).malloc(5), OutOfMemory, "2097152"),
    (lambda: replay(CachingAllocator(), [("take", 1, 2)], {}), ValueError, "take"),
    (lambda: replay(CachingAllocator(), [("free", 1, 0)], {}), ValueError, "1"),
    (lambda: list(generation(GPT2Config(), 0, 5)), ValueError, "prompt"),
    (lambda: list(generation(GPT2Config(), 5, -1)), ValueError, "new_tokens"),
    (lambda: list(generation(GPT2Config(), 5, 5, "paged")), ValueError, "paged"),
    (lambda: list(generation(GPT2Config(), 5, 5, batch=0)), ValueError, "batch"),
]


@pytest.mark.parametrize(("call", "kind", "named"), BAD)
def test_bad_requests_name_the_value(call, kind, named):
    with pytest.raises(kind, match=named.replace(".", r"\.")):
        call()
