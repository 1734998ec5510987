"""Key-value caches: what a model may keep of the tokens it has read."""

from .base import Cache, expect
from .growing import GrowingCache
from .static import StaticCache

__all__ = ["Cache", "GrowingCache", "StaticCache", "expect"]
