"""The checks of a decoder, each small and named after what it would catch."""

import inspect

import torch
from torch import Tensor

from .judge import DECLARED, feed, float64_copy, gaps, one_pass, run
from .lab import LONGEST, Lab, Outcome, check, pieces, refuses, worst


@check(
    "premises",
    "Nothing else is proved: logits must depend on the past, and the reference agree with itself.",
)
def premises(lab: Lab) -> Outcome:
    judge = lab.judge
    bound = DECLARED[torch.float32] * judge.scale
    if not judge.noise <= bound:
        note = "the reference disagrees with itself: later tokens change earlier logits"
        return Outcome(False, judge.noise, "reference", note)
    if not judge.distance <= DECLARED[judge.dtype] * judge.scale:
        note = f"{judge.dtype} strays further from float64 than rounding explains"
        return Outcome(False, judge.distance, "reference", note)
    other = judge.long[:, :9].clone()
    other[:, :-1] = (other[:, :-1] + 1) % lab.decoder.vocab_size
    moved = float(gaps(judge.full(other)[:, -1:], judge.right[:, other.shape[1] - 1, None]).max())
    note = "" if moved > judge.tolerance else "logits do not depend on the past"
    return Outcome(not note, None if not note else moved, "reference" if note else "", note)


@check(
    "another implementation",
    "The model itself differs from another implementation of it: weights, activation, norm, scale.",
)
def another_implementation(lab: Lab) -> Outcome:
    if lab.given is None:
        peer = lab.power("peer")()
        found = one_pass(peer, lab.judge.long)
    else:
        found = one_pass(lab.decoder, lab.judge.long)
    return lab.verdict(gaps(found, lab.judge.right), [lab.judge.long.shape[1]])


@check(
    "one token at a time",
    "A single new token goes wrong: its position, the rows stored, or a row left out.",
)
def one_token(lab: Lab) -> Outcome:
    return lab.along([1] * min(24, lab.limit))


@check(
    "chunks",
    "Several new tokens at once go wrong: a mask that is missing or aligned to the first rows, "
    "or rows out of order.",
)
def chunks(lab: Lab) -> Outcome:
    length = min(24, lab.limit)
    splits = [pieces(length, size) for size in range(2, 9)]
    random = torch.Generator().manual_seed(0)
    for _ in range(3):
        sizes = torch.randint(2, 9, (length,), generator=random).tolist()
        splits.append(pieces(length, *sizes))
    return worst(lab.along(split) for split in splits)


@check(
    "long prompt then decode",
    "The hand-over from prompt to decode: a token read twice or left out, or a prompt in pieces.",
)
def long_prompt(lab: Lab) -> Outcome:
    prompt = min(96, max(1, lab.limit - 12))
    return lab.along([prompt, *[1] * min(12, lab.limit - prompt)])


@check(
    "to the last position",
    "Right at first and wrong further on: a counter that loses precision, a window, or a resize.",
)
def to_the_last(lab: Lab) -> Outcome:
    return lab.along(pieces_to(lab.limit, 128, 256))


def pieces_to(limit: int, *marks: int) -> list[int]:
    """Chunks of 32 up to `limit`, single tokens around each of `marks` and at the end."""
    found: list[int] = []
    for mark in (*marks, limit):
        if mark <= limit and mark - 2 > sum(found):
            found += [*pieces(mark - 2 - sum(found), 32), 1, 1]
    return [*found, *pieces(limit - sum(found), 1)]


@check("past the last position", "A token without a position was taken in silence.")
def past_the_last(lab: Lab) -> Outcome:
    block = getattr(lab.decoder, "block_size", None)
    if block is None or block > LONGEST:
        raise NotImplementedError("no end is declared, or it is past the tested length")
    tokens = torch.cat([lab.judge.long, lab.judge.long[:, :1]], dim=1)
    for chunks in ([block, 1], [block + 1]):
        if not refuses(lambda chunks=chunks: run(lab.decoder, tokens, chunks)):
            return Outcome(False, None, f"position {block}", f"chunks {chunks} raised nothing")
    return Outcome(True)


@check("past the capacity", "A row past the end of the storage was dropped in silence.")
def past_the_capacity(lab: Lab) -> Outcome:
    tokens, room = lab.judge.long[:, :10], min(8, lab.limit - 1)
    found = []

    def overfill():
        state = lab.decoder.start(1, room)
        found.append(feed(lab.decoder, tokens, [room, *[1] * (tokens.shape[1] - room)], state)[0])

    if refuses(overfill):
        return Outcome(True)
    return lab.verdict(gaps(found[0], lab.judge.right[:, : tokens.shape[1]]), [room, 1, 1])


def alone(lab: Lab, tokens: Tensor) -> Tensor:
    """The right logits of each row of `tokens`, read by the judge one row at a time."""
    return torch.cat([lab.judge.full(row[None]) for row in tokens])


@check("rows independent", "Rows of a batch reach each other: a wrong axis, or one shared state.")
def rows_independent(lab: Lab) -> Outcome:
    tokens = lab.draw(4, 24, 1)
    split = pieces(tokens.shape[1], 12, 1, 1, 10)
    others = lab.draw(4, 24, 2)
    others[2] = tokens[2]  # every other row changed, this one the same
    right = alone(lab, tokens)
    right_others = torch.cat([alone(lab, others[:2]), right[2:3], alone(lab, others[3:])])
    return worst(
        lab.measure(batch, split, logits)
        for batch, logits in ((tokens, right), (others, right_others))
    )


@check(
    "left padding",
    "Padding is counted or attended to: positions that start at the pad, or a mask that forgets.",
)
def left_padding(lab: Lab) -> Outcome:
    if "padding" not in inspect.signature(lab.decoder.step).parameters:
        raise NotImplementedError("step() takes no padding")
    tokens = lab.draw(3, 24, 3)
    padding = torch.tensor([5, 0, 2], device=lab.device).clamp(max=tokens.shape[1] - 1)
    right = torch.zeros(*tokens.shape, lab.decoder.vocab_size, device=lab.device).double()
    for row, pad in enumerate(padding.tolist()):
        right[row, pad:] = lab.judge.full(tokens[row : row + 1, pad:])[0]
    return lab.measure(tokens, pieces(tokens.shape[1], 12, 1, 1, 10), right, padding)


@check("fresh state", "A new state remembers an earlier prompt.")
def fresh_state(lab: Lab) -> Outcome:
    first = lab.judge.long[:, :24]
    swapped = first.clone()  # the same tokens in another order: nothing else tells them apart
    swapped[:, 1:12] = first[:, 1:12].flip(1)
    split = pieces(first.shape[1], 12, 1)
    right = {"first": lab.judge.right[:, : first.shape[1]], "swapped": lab.judge.full(swapped)}
    return worst(
        lab.measure(tokens, split, right[name])
        for name, tokens in (("first", first), ("swapped", swapped), ("first", first))
    )


@check("two states", "Two states that are alive at once share storage or a counter.")
def two_states(lab: Lab) -> Outcome:
    rows = [lab.draw(1, 20, seed) for seed in (4, 5)]
    length = rows[0].shape[1]
    states = [lab.decoder.start(1, length) for _ in rows]
    found: list[list[Tensor]] = [[], []]
    split = pieces(length, 10, 1)
    for begin, size in zip(torch.tensor([0, *split]).cumsum(0).tolist(), split, strict=False):
        for i, tokens in enumerate(rows):
            piece = tokens[:, begin : begin + size]
            logits, states[i] = feed(lab.decoder, piece, [size], states[i])
            found[i].append(logits)
    return worst(
        lab.verdict(gaps(torch.cat(logits, dim=1), lab.judge.full(tokens)), split)
        for logits, tokens in zip(found, rows, strict=True)
    )


def after_truncate(lab: Lab, keep: int) -> Outcome:
    """The outcome of reading 20 tokens, keeping `keep`, and going on with others."""
    truncate = lab.power("truncate")
    tokens, other = lab.draw(1, 20, 6), lab.draw(1, 13, 7)
    length = tokens.shape[1]
    keep = min(keep, length - 1)
    other = other[:, : lab.limit - keep]
    state = lab.decoder.start(1, length + other.shape[1])
    _, state = feed(lab.decoder, tokens, pieces(length, 12, 1), state)
    split = pieces(other.shape[1], 11, 1)
    found, _ = feed(lab.decoder, other, split, truncate(state, keep))
    right = lab.judge.full(torch.cat([tokens[:, :keep], other], dim=1))[:, keep:]
    outcome = lab.verdict(gaps(found, right), split)
    return outcome._replace(where=outcome.where and f"{outcome.where} after truncate({keep})")


@check("truncate and continue", "What was cut is still read, or what was kept is lost.")
def truncate_and_continue(lab: Lab) -> Outcome:
    return worst(after_truncate(lab, keep) for keep in (15, 11))


@check("truncate to nothing", "Keeping 0 tokens keeps some: 0 was taken for 'not given'.")
def truncate_to_nothing(lab: Lab) -> Outcome:
    return after_truncate(lab, 0)


@check("truncate too far", "A length that is not stored was accepted, and rows unwritten are read.")
def truncate_too_far(lab: Lab) -> Outcome:
    truncate = lab.power("truncate")
    for length in (7, -1):
        state = lab.decoder.start(1, 12)
        _, state = lab.decoder.step(lab.draw(1, 6, 10), state)
        if not refuses(lambda length=length, state=state: truncate(state, length)):
            return Outcome(False, None, f"truncate({length})", "nothing was raised")
    return Outcome(True)


@check("caller's tensors", "The decoder wrote into a tensor that belongs to its caller.")
def callers_tensors(lab: Lab) -> Outcome:
    tokens = lab.draw(2, 8, 8)
    state = lab.decoder.start(*tokens.shape)
    for piece in tokens.split(pieces(tokens.shape[1], 5, 1, 2), dim=1):
        given = piece.clone()
        _, state = lab.decoder.step(given, state)
        if not torch.equal(given, piece):
            return Outcome(False, None, f"step of {piece.shape[1]} tokens", "tokens were changed")
    return Outcome(True)


@check("cache dtype", "Keys and values are stored in a narrower type than the model computes in.")
def cache_dtype(lab: Lab) -> Outcome:
    seen = False
    copy = lab.judge.copy if lab.given is None else float64_copy(lab.decoder)
    for decoder in filter(None, (lab.decoder, copy)):
        logits, state = decoder.step(lab.draw(1, 6, 9), decoder.start(1, 6))
        for tensor in stored(state):
            seen = True
            if torch.finfo(tensor.dtype).eps > torch.finfo(logits.dtype).eps:
                note = f"{tensor.dtype} stored under logits of {logits.dtype}"
                return Outcome(False, None, "state", note)
    if not seen:
        raise NotImplementedError("no floating-point tensors are to be seen in the state")
    return Outcome(True)


def stored(state, depth: int = 5) -> list[Tensor]:
    """The floating-point tensors of 3 dimensions or more in `state`, looked for inside objects."""
    if isinstance(state, Tensor):
        return [state] if state.is_floating_point() and state.dim() >= 3 else []
    if isinstance(state, dict):
        inside = list(state.values())
    elif isinstance(state, (list, tuple)):
        inside = list(state)
    else:
        inside = list(getattr(state, "__dict__", {}).values())
    return [tensor for part in inside for tensor in stored(part, depth - 1)] if depth else []


@check(
    "determinism",
    "The same calls give different logits: dropout left on, or memory read before it is written.",
    diagnostic="it tells a decoder that cannot repeat itself from one that is wrong in one way",
)
def determinism(lab: Lab) -> Outcome:
    tokens, split = lab.judge.long[:, :16], pieces(min(16, lab.limit), 8, 1)
    again = run(lab.decoder, tokens, split)
    return lab.verdict(gaps(again, run(lab.decoder, tokens, split)), split)


@check(
    "greedy tokens",
    "The text itself changes: what a reader would notice, long after the logits have shown it.",
    diagnostic="it is what users see; a difference in text is one in logits that other checks find",
)
def greedy_tokens(lab: Lab) -> Outcome:
    judge, prompt = lab.judge, min(16, max(1, lab.limit - 1))
    new = min(200, lab.limit - prompt)
    state = lab.decoder.start(1, prompt + new)
    logits, state = feed(lab.decoder, judge.long[:, :prompt], [prompt], state)
    text = [judge.long[:, :prompt]]
    for _ in range(new):
        text.append(logits[:, -1:].argmax(-1))
        logits, state = feed(lab.decoder, text[-1], [1], state)
    tokens = torch.cat(text, dim=1)
    right = judge.full(tokens)[0, prompt - 1 : -1]  # (new, V), each the logits of a chosen token
    lead = right.amax(-1) - right.gather(-1, tokens[0, prompt:, None])[:, 0]
    wrong = ~(lead <= 2 * judge.tolerance)  # nearer than that is a tie: either may win
    if wrong.any():
        step = int(wrong.nonzero()[0])
        return Outcome(False, float(lead[step]), f"row 0, position {prompt + step}")
    return Outcome(True, float(lead.max()))
