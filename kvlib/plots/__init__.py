"""Pictures from numbers: the plotting functions of the course, in one style.

A function here draws one matplotlib figure from the numbers it is given and returns it. It computes
nothing that a reader would want to check. `heat`, `bars` and `direct_label` draw into given axes.
"""

from .attention import next_token_work, one_query, repeated_rows
from .cache import cache_rows, decode_step, growth, mask_alignments
from .floor import moves, regime_map, rungs
from .memory import allocator_segments, memory_bill
from .parts import bars, direct_label, heat
from .style import COLOUR, DIVERGING, SEQUENTIAL, STYLE, use_style
from .trust import bug_matrix, parting

__all__ = [
    "COLOUR",
    "DIVERGING",
    "SEQUENTIAL",
    "STYLE",
    "allocator_segments",
    "bars",
    "bug_matrix",
    "cache_rows",
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
    "regime_map",
    "repeated_rows",
    "rungs",
    "use_style",
]
