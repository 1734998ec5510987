"""PyTorch's CUDA caching allocator as a small simulator: the same rules, on numbers alone.

The rules are those of c10/cuda/CUDACachingAllocator.cpp with its default settings (no expandable
segments, no splitting limit, no garbage collection), for one stream of one device. A request is
rounded up to a multiple of 512 bytes. Up to 1 MiB it is served from 2 MiB segments, the small pool;
above, from the large pool, whose segments are 20 MiB, or from 10 MiB on the request rounded up to
2 MiB. The smallest free block that is large enough is taken, the lowest address among equals, and
split where enough is left over. A freed block joins its free neighbours in the segment. Segments go
back to the device only when they are entirely free, and then only when asked or when memory is out.
"""

from collections.abc import Hashable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from .costs import cache_bytes_per_tensor
from .shapes import positive

MIN_BLOCK = 512
SMALL_REQUEST, SMALL_SEGMENT = 1 << 20, 2 << 20
LARGE_SEGMENT, LARGE_REQUEST, LARGE_ROUND = 20 << 20, 10 << 20, 2 << 20
LARGEST = 2**63 - 1


class OutOfMemory(MemoryError):
    """The device has no room for a new segment, and no free block is large enough."""


@dataclass(eq=False)
class Block:
    """A stretch of one segment: `size` bytes at `offset`, in use where `requested` is not None."""

    segment: "Segment"
    offset: int
    size: int
    requested: int | None = None
    name: str = ""


@dataclass(eq=False)
class Segment:
    """Memory taken from the device in one piece, cut into blocks that cover it without gaps."""

    number: int
    size: int
    small: bool
    blocks: list[Block] = field(default_factory=list)

    @property
    def free(self) -> bool:
        """True where no part of it is in use: only then can it go back to the device."""
        return len(self.blocks) == 1 and self.blocks[0].requested is None


def rounded(nbytes: int) -> int:
    """Bytes of the block that a request for `nbytes` gets: the next multiple of 512."""
    return -(-nbytes // MIN_BLOCK) * MIN_BLOCK


def segment_bytes(size: int) -> int:
    """Bytes of the new segment that a request rounded to `size` takes from the device."""
    if size <= SMALL_REQUEST:
        return SMALL_SEGMENT
    if size < LARGE_REQUEST:
        return LARGE_SEGMENT
    return -(-size // LARGE_ROUND) * LARGE_ROUND


class CachingAllocator:
    """The allocator's books: what was requested, what its blocks hold, what its segments reserve.

    `capacity_bytes` is what the device can give; None for no end. `requested_bytes` sums the
    requests in use, `allocated_bytes` their blocks, `reserved_bytes` all segments; each has a
    `peak_...`. In PyTorch these are `torch.cuda.memory_stats()`'s `requested_bytes`,
    `allocated_bytes` and `reserved_bytes`.
    """

    def __init__(self, capacity_bytes: int | None = None):
        if capacity_bytes is not None:
            positive(capacity_bytes=capacity_bytes)
        self.capacity_bytes = capacity_bytes
        self.segments: list[Segment] = []
        self.requested_bytes = self.allocated_bytes = self.reserved_bytes = 0
        self.peak_requested_bytes = self.peak_allocated_bytes = self.peak_reserved_bytes = 0
        self.made = 0  # segments taken so far: a new one lies above all older ones

    def malloc(self, nbytes: int, name: str = "") -> Block:
        """The block that now serves a request for `nbytes`; `name` is for pictures.

        Raises ValueError for a request that is no positive integer or exceeds 2**63 - 1, and
        OutOfMemory, with nothing changed but free segments given back, where there is no room.
        """
        positive(nbytes=nbytes)
        if nbytes > LARGEST:
            raise ValueError(f"nbytes={nbytes} is more than a size can say ({LARGEST})")
        size = rounded(nbytes)
        block = self.best_fit(size) or self.new_segment(size)
        left = block.size - size
        if left >= MIN_BLOCK if block.segment.small else left > SMALL_REQUEST:
            self.split(block, size)
        block.requested, block.name = nbytes, name
        self.count(nbytes, block.size)
        return block

    def free(self, block: Block) -> None:
        """Take `block` back; it stays reserved, joined with its free neighbours.

        Raises ValueError where it is not in use here, as after a first `free`.
        """
        if (
            block.requested is None
            or block not in block.segment.blocks
            or (block.segment not in self.segments)
        ):
            raise ValueError("block is not in use in this allocator; free each block once")
        self.count(-block.requested, -block.size)
        block.requested, block.name = None, ""
        blocks = block.segment.blocks
        place = blocks.index(block)
        for left in (place, place - 1):  # the right neighbour first, so that `place` stays true
            pair = blocks[max(left, 0) : left + 2]
            if len(pair) == 2 and all(half.requested is None for half in pair):
                pair[0].size += blocks.pop(left + 1).size

    def empty_cache(self) -> int:
        """Bytes given back to the device: every segment no part of which is in use."""
        given = [segment for segment in self.segments if segment.free]
        self.segments = [segment for segment in self.segments if not segment.free]
        back = sum(segment.size for segment in given)
        self.reserved_bytes -= back
        return back

    @property
    def fragmentation(self) -> float:
        """Share of the reserved bytes that no block in use holds; 0 where nothing is reserved."""
        return 1 - self.allocated_bytes / self.reserved_bytes if self.reserved_bytes else 0.0

    def best_fit(self, size: int) -> Block | None:
        """The smallest free block of at least `size` bytes in its pool, the lowest among equals."""
        fits = [
            (block.size, segment.number, block.offset, block)
            for segment in self.segments
            if segment.small == (size <= SMALL_REQUEST)
            for block in segment.blocks
            if block.requested is None and block.size >= size
        ]
        return min(fits, key=lambda fit: fit[:3])[3] if fits else None

    def new_segment(self, size: int) -> Block:
        """The one block of a segment newly taken; free segments are given back first if need be."""
        nbytes = segment_bytes(size)
        if self.capacity_bytes is not None and self.reserved_bytes + nbytes > self.capacity_bytes:
            self.empty_cache()
            if self.reserved_bytes + nbytes > self.capacity_bytes:
                raise OutOfMemory(
                    f"tried to take a segment of {nbytes} bytes for a block of {size}; of "
                    f"{self.capacity_bytes} bytes {self.reserved_bytes} are reserved and "
                    f"{self.allocated_bytes} allocated; free blocks, or ask for less"
                )
        segment = Segment(self.made, nbytes, size <= SMALL_REQUEST)
        segment.blocks.append(Block(segment, 0, nbytes))
        self.segments.append(segment)
        self.made += 1
        self.reserved_bytes += nbytes
        self.peak_reserved_bytes = max(self.peak_reserved_bytes, self.reserved_bytes)
        return segment.blocks[0]

    def split(self, block: Block, size: int) -> None:
        """Cut `block` to `size` bytes; the rest becomes a free block after it."""
        rest = Block(block.segment, block.offset + size, block.size - size)
        blocks = block.segment.blocks
        blocks.insert(blocks.index(block) + 1, rest)
        block.size = size

    def count(self, requested: int, allocated: int) -> None:
        """Enter a change into the books."""
        self.requested_bytes += requested
        self.allocated_bytes += allocated
        self.peak_requested_bytes = max(self.peak_requested_bytes, self.requested_bytes)
        self.peak_allocated_bytes = max(self.peak_allocated_bytes, self.allocated_bytes)


Event = tuple[str, Hashable, int]  # ("malloc", key, bytes) or ("free", key, 0)


def replay(
    allocator: CachingAllocator, events: Iterable[Event], held: dict[Hashable, Block]
) -> None:
    """Serve `events` in order; `held` maps each key to its block and is kept up to date."""
    for what, key, nbytes in events:
        if what == "malloc":
            held[key] = allocator.malloc(nbytes, str(key).split()[0])
        elif what == "free" and key in held:
            allocator.free(held.pop(key))
        elif what == "free":
            raise ValueError(f"free of {key!r}, which no malloc before it named")
        else:
            raise ValueError(f"event {what!r} is neither 'malloc' nor 'free'")


def generation(
    config: Any,
    prompt: int,
    new_tokens: int,
    cache: str = "growing",
    batch: int = 1,
    dtype_bytes: int = 4,
) -> Iterator[list[Event]]:
    """The requests that a cache makes: one list for prefill, then one for each new token.

    "static" takes its keys and its values once, at full capacity. "growing" concatenates: in each
    layer the new keys are requested while the old ones still stand, then the old ones are freed,
    and so the values. In a latent cache the latents take the place of the keys and the rotary keys
    that of the values. Weights and activations are left out.
    """
    positive(prompt=prompt, new_tokens=new_tokens, batch=batch)
    if cache not in ("growing", "static"):
        raise ValueError(f"no cache {cache!r}; choose 'growing' or 'static'")
    if cache == "static":
        whole = cache_bytes_per_tensor(config, prompt + new_tokens, batch, dtype_bytes)
        keys, values = map(sum, zip(*filter(None, whole), strict=True))
        yield [("malloc", "keys", keys), ("malloc", "values", values)]
        yield from ([] for _ in range(new_tokens))
        return
    for tokens in range(prompt, prompt + new_tokens + 1):
        events: list[Event] = []
        sizes = cache_bytes_per_tensor(config, tokens, batch, dtype_bytes)
        for layer, tensors in enumerate(sizes):
            for kind, nbytes in zip("kv", tensors, strict=False):  # none in a layer that shares
                events.append(("malloc", f"{kind}{layer} {tokens}", nbytes))
                if tokens > prompt:
                    events.append(("free", f"{kind}{layer} {tokens - 1}", 0))
        yield events
