"""Counting instead of learning: the n-gram models that a language model must beat."""

import numpy as np


class KneserNey:
    """An interpolated Kneser-Ney n-gram model of a sequence of token ids.

    The longest order counts occurrences; each shorter one counts in how many different contexts
    its gram was seen; order 0 is uniform over the vocabulary. The discount of each order is
    n1 / (n1 + 2 n2), from the number of grams seen once and twice.
    Source: Chen and Goodman 1999, section 2.7.
    """

    def __init__(self, ids: np.ndarray, order: int, vocab_size: int):
        if (vocab_size + 1) ** order >= 2**63:
            raise ValueError(f"order {order} with {vocab_size} ids does not fit 64-bit keys")
        self.order, self.vocab_size = order, vocab_size
        keys = self.keys(np.asarray(ids), order)
        self.levels = []  # from the longest order to 1
        for length in range(order, 0, -1):
            grams, counts = np.unique(keys, return_counts=True)
            once, twice = (counts == 1).sum(), (counts == 2).sum()
            contexts, first = np.unique(grams // vocab_size, return_index=True)
            totals = np.add.reduceat(counts, first)
            kinds = np.diff(first, append=len(grams))
            discount = once / (once + 2 * twice) if once else 0.5
            self.levels.append((grams, counts, contexts, totals, kinds, discount))
            keys = grams % vocab_size ** (length - 1)  # each kind counts once for the shorter order

    def keys(self, ids: np.ndarray, length: int) -> np.ndarray:
        """One integer for each run of `length` ids, in order."""
        ids = ids.astype(np.int64)
        keys = np.zeros(len(ids) - length + 1, np.int64)
        for place in range(length):
            keys = keys * self.vocab_size + ids[place : place + len(keys)]
        return keys

    def losses(self, ids: np.ndarray) -> np.ndarray:
        """-log p in nats of each id given those before it, from the `order`-th id on."""
        keys = self.keys(np.asarray(ids), self.order)
        p = np.full(len(keys), 1 / self.vocab_size)
        for length, level in zip(range(1, self.order + 1), reversed(self.levels), strict=True):
            grams, counts, contexts, totals, kinds, discount = level
            gram = keys % self.vocab_size**length
            count = looked_up(gram, grams, counts)
            total = looked_up(gram // self.vocab_size, contexts, totals)
            kind = looked_up(gram // self.vocab_size, contexts, kinds)
            seen = np.maximum(count - discount, 0) + discount * kind * p
            p = np.where(total > 0, seen / np.maximum(total, 1), p)
        return -np.log(p)


def looked_up(wanted: np.ndarray, sorted_keys: np.ndarray, values: np.ndarray) -> np.ndarray:
    """The value beside each wanted key, 0 where the key is not there."""
    at = np.searchsorted(sorted_keys, wanted).clip(max=len(sorted_keys) - 1)
    return np.where(sorted_keys[at] == wanted, values[at], 0)
