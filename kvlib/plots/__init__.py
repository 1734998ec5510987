"""Pictures from numbers: the plotting functions of the course, in one style.

A function here draws one matplotlib figure from the numbers it is given and returns it. It computes
nothing that a reader would want to check. `heat`, `bars` and `direct_label` draw into given axes.
"""

from .attention import next_token_work, one_query, repeated_rows
from .cache import cache_rows, decode_step, growth, mask_alignments
from .floor import moves, regime_map, rungs
from .latency import CALLED, against_context, by_batch, cost_of_a_token, per_token
from .look import cache_step
from .memory import allocator_segments, memory_bill
from .parts import bars, direct_label, heat
from .style import COLOUR, DIVERGING, SEQUENTIAL, STYLE, use_style
from .trust import bug_matrix, parting

__all__ = [
    "CALLED",
    "COLOUR",
    "DIVERGING",
    "SEQUENTIAL",
    "STYLE",
    "against_context",
    "allocator_segments",
    "bars",
    "bug_matrix",
    "by_batch",
    "cache_rows",
    "cache_step",
    "cost_of_a_token",
    "decode_step",
    "direct_label",
    "growth",
    "heat",
    "mask_alignments",
    "memory_bill",
    "moves",
    "next_token_work",
    "one_query",
    "parting",
    "per_token",
    "regime_map",
    "repeated_rows",
    "rungs",
    "use_style",
]
