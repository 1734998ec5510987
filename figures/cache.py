"""The picture the README opens with: the cache of one head of nano, token by token.

Draws figures/cache.gif.
"""

from pathlib import Path

from kvlib import load
from kvlib.animate import animate


def main():
    animate(load("nano"), out=Path(__file__).parent / "cache.gif", name="nano")


if __name__ == "__main__":
    main()
