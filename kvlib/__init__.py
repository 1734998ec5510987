"""The KV cache, measured: a small GPT-2, its caches, and instruments to examine any of them.

Every public name is imported when first asked for, so `kvlib.costs` needs no torch.
"""

import importlib
import sys
from types import ModuleType

__version__ = "0.1.0"

NAMES = {
    "GPT2": "model",
    "GPT2Config": "config",
    "GrowingCache": "caches",
    "StaticCache": "caches",
    "Step": "step",
    "full_size": "weights",
    "load": "weights",
    "from_hf": "weights",
    "generate": "generate",
    "stream": "generate",
    "tokenizer": "tokenizer",
    "explore": "explore",
}
MODULES = [
    "allocator",
    "bugs",
    "caches",
    "config",
    "corpus",
    "costs",
    "decoders",
    "exercise",
    "machine",
    "memory",
    "model",
    "models",
    "parity",
    "plots",
    "product",
    "shapes",
    "step",
    "timing",
    "train",
    "weights",
]

__all__ = [*NAMES, *MODULES]


class Package(ModuleType):
    """This package. Python binds a submodule under its own name once it is imported; where a
    function shares that name (`generate`, `tokenizer`, `explore`), the function takes the place.
    """

    def __setattr__(self, name, value):
        if name in NAMES and isinstance(value, ModuleType):
            value = getattr(value, name)
        super().__setattr__(name, value)


sys.modules[__name__].__class__ = Package


def __getattr__(name: str):
    if name in NAMES:
        return getattr(importlib.import_module(f".{NAMES[name]}", __name__), name)
    if name in MODULES:
        return importlib.import_module(f".{name}", __name__)
    raise AttributeError(f"kvlib has no {name!r}; it has {', '.join(__all__)}")


def __dir__():
    return sorted(__all__)
