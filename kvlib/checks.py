"""The checks of a decoder, each small and named after what it would catch."""

import torch
import torch.nn.functional as F
from torch import Tensor

from .judge import checked, eps, feed, float64_copy, gaps, one_pass, precision, run
from .lab import KEEPS, LONGEST, PADDED_KEEP, REFUSED, Lab, Outcome, attempt, check, pieces, worst


@check(
    "premises",
    "Nothing else is proved: logits must depend on the past, and the reference agree with itself.",
)
def premises(lab: Lab) -> Outcome:
    judge = lab.judge
    exact = judge.copy is not None  # a judge in float64 owes more than one that only declares
    if not judge.noise <= judge.bound_of(torch.float32 if exact else judge.own):
        note = "the reference disagrees with itself: later tokens change earlier logits"
        return Outcome(False, judge.noise, "reference", note)
    if not judge.distance <= judge.bound_of(judge.own):
        note = f"{judge.own} strays further from float64 than rounding explains"
        return Outcome(False, judge.distance, "reference", note)
    other = lab.texts.long[:, :9].clone()
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
        found = one_pass(peer, lab.texts.long)
    else:
        found = one_pass(lab.decoder, lab.texts.long)
    return lab.verdict(gaps(found, lab.judge.right), [lab.limit])


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
    split = [prompt, *[1] * min(12, lab.limit - prompt)]
    return worst(read(lab, split) for read in (Lab.along, last_alone))


def last_alone(lab: Lab, split: list[int]) -> Outcome:
    """The outcome of `last`, where the decoder has it: the last logits of each piece of `split`."""
    last, length = getattr(lab.decoder, "last", None), sum(split)
    if last is None:
        return Outcome(True, 0.0)
    state, found = lab.decoder.start(1, length), []
    for piece in lab.texts.long[:, :length].split(split, dim=1):
        logits, state = last(piece.clone(), state)
        found.append(checked(logits, piece[:, -1:], lab.decoder))
    begin = split[0] - 1  # the prompt's last position, from which on all are compared
    gap = gaps(torch.cat(found, dim=1), lab.judge.right[:, begin:length])
    outcome = lab.verdict(F.pad(gap, (begin, 0)), split)
    return outcome._replace(where=outcome.where and f"{outcome.where}, in last()")


@check(
    "to the last position",
    "Right at first and wrong further on: a counter that loses precision, a window, or a resize.",
)
def to_the_last(lab: Lab) -> Outcome:
    prompt = max(1, lab.limit - 2)
    split = [prompt, *[1] * (lab.limit - prompt)]
    above = lab.draw(1, lab.limit, 8)  # what is resized has another row beside the one judged
    both = torch.cat([above, lab.texts.long])
    runs = (lab.texts.long, split), (both, pieces_to(lab.limit, 128, 256))
    return worst(lab.measure(tokens, chunks, lab.judge.right) for tokens, chunks in runs)


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
    policy = getattr(lab.decoder, "on_limit", "raise")
    if policy != "raise":
        raise NotImplementedError(f"the decoder declares on_limit={policy!r}, which none can judge")
    tokens = torch.cat([lab.texts.long, lab.texts.long[:, :1]], dim=1)
    for chunks in ([block, 1], [block + 1]):
        if read_past(lab, tokens, chunks, block + 1) is not None:
            return Outcome(False, None, f"position {block}", f"chunks {chunks} raised nothing")
    return Outcome(True)


def read_past(lab: Lab, tokens: Tensor, chunks: list[int], capacity: int) -> Tensor | None:
    """Logits of `tokens`; None where the last of `chunks` is refused, or a state for all of them.

    An error before the last is the decoder's own, and no refusal.
    """
    state = attempt(lambda: lab.decoder.start(1, capacity))
    if state is REFUSED:
        return None
    before, found = tokens.shape[1] - chunks[-1], []
    if before:
        logits, state = feed(lab.decoder, tokens[:, :before], chunks[:-1], state)
        found.append(logits)
    last = attempt(lambda: feed(lab.decoder, tokens[:, before:], chunks[-1:], state))
    return None if last is REFUSED else torch.cat([*found, last[0]], dim=1)


@check("past the capacity", "A row past the end of the storage was dropped in silence.")
def past_the_capacity(lab: Lab) -> Outcome:
    room = min(8, lab.limit - 1)
    for more in range(1, 3):  # the first may be dropped in silence, and the second refused
        length = min(room + more, lab.limit)
        chunks = [room, *[1] * (length - room)]
        found = read_past(lab, lab.texts.long[:, :length], chunks, room)
        if found is None:
            return Outcome(True)
        outcome = lab.verdict(gaps(found, lab.judge.right[:, :length]), chunks)
        if not outcome.ok:
            return outcome
    return outcome


def alone(lab: Lab, tokens: Tensor) -> Tensor:
    """The right logits of each row of `tokens`, read by the judge one row at a time."""
    return torch.cat([lab.judge.full(row[None]) for row in tokens])


@check("rows independent", "Rows of a batch reach each other: a wrong axis, or one shared state.")
def rows_independent(lab: Lab) -> Outcome:
    split = pieces(lab.texts.batch.shape[1], 12, 1, 1, 10)
    return worst(
        lab.measure(batch, split, alone(lab, batch))
        for batch in (lab.texts.batch, lab.texts.others)
    )


@check(
    "left padding",
    "Padding is counted or attended to: positions that start at the pad, or a mask that forgets.",
)
def left_padding(lab: Lab) -> Outcome:
    if not lab.takes_padding:
        raise NotImplementedError("step() takes no padding")
    tokens, length = lab.texts.ragged, lab.texts.ragged.shape[1]
    rows = [lab.judge.full(row) for row in lab.texts.unpadded()]
    right = torch.cat([F.pad(row, (0, 0, length - row.shape[1], 0)) for row in rows])
    split = pieces(length, 12, 1, 1, 10)
    outcome = lab.measure(tokens, split, right, lab.texts.padding(length))
    try:
        return worst([outcome, after_truncate(lab, PADDED_KEEP, padded=True)])
    except NotImplementedError:  # no rollback to try it with
        return outcome


@check("fresh state", "A new state remembers an earlier prompt.")
def fresh_state(lab: Lab) -> Outcome:
    first, swapped = lab.texts.long[:, :24], lab.texts.swapped  # only their order differs
    split = pieces(first.shape[1], 12, 1)
    right = {"first": lab.judge.right[:, : first.shape[1]], "swapped": lab.judge.full(swapped)}
    return worst(
        lab.measure(tokens, split, right[name])
        for name, tokens in (("first", first), ("swapped", swapped), ("first", first))
    )


@check("two states", "Two states that are alive at once share storage or a counter.")
def two_states(lab: Lab) -> Outcome:
    rows = lab.texts.pair.split(1)
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


def after_truncate(lab: Lab, keep: int, padded: bool = False) -> Outcome:
    """The outcome of reading three rows of 20 tokens, keeping `keep`, and going on with others."""
    truncate = lab.power("truncate")
    keep, texts = lab.texts.kept(keep, padded)
    first, other = lab.texts.first, lab.texts.second[:, : lab.limit - keep]
    length, new = first.shape[1], other.shape[1]
    padding = lab.texts.padding(keep) if padded and keep else None
    state = lab.decoder.start(len(first), length + new)
    _, state = feed(lab.decoder, first, pieces(length, 12, 1), state, padding=padding)
    split = pieces(new, 11, 1)
    found, _ = feed(lab.decoder, other, split, truncate(state, keep))
    right = torch.cat([lab.judge.full(text)[:, -new:] for text in texts])
    outcome = lab.verdict(gaps(found, right), split)
    note = f" after truncate({keep}){' of padded rows' if padded else ''}"
    return outcome._replace(where=outcome.where and outcome.where + note)


@check("truncate and continue", "What was cut is still read, or what was kept is lost.")
def truncate_and_continue(lab: Lab) -> Outcome:
    return worst(after_truncate(lab, keep) for keep in KEEPS[:-1])


@check("truncate to nothing", "Keeping 0 tokens keeps some: 0 was taken for 'not given'.")
def truncate_to_nothing(lab: Lab) -> Outcome:
    return after_truncate(lab, KEEPS[-1])


@check("truncate too far", "A length that is not stored was accepted, and rows unwritten are read.")
def truncate_too_far(lab: Lab) -> Outcome:
    truncate = lab.power("truncate")
    for length in (7, -1):
        state = lab.decoder.start(1, 12)
        _, state = lab.decoder.step(lab.draw(1, 6, 10), state)
        if attempt(lambda length=length, state=state: truncate(state, length)) is not REFUSED:
            return Outcome(False, None, f"truncate({length})", "nothing was raised")
    return Outcome(True)


@check("caller's tensors", "The decoder wrote into a tensor that belongs to its caller.")
def callers_tensors(lab: Lab) -> Outcome:
    tokens = lab.draw(3, 8, 8)
    padding = lab.texts.padding(tokens.shape[1])
    for first in ([], [padding]) if lab.takes_padding else ([],):
        state = lab.decoder.start(*tokens.shape)
        for piece in tokens.split(pieces(tokens.shape[1], 5, 1, 2), dim=1):
            right = [piece, *first]
            given = [each.clone() for each in right]
            padded = dict(zip(["padding"], given[1:], strict=False))
            _, state = lab.decoder.step(given[0], state, **padded)
            if not all(map(torch.equal, given, right)):
                where = f"step of {piece.shape[1]} tokens"
                return Outcome(False, None, where, "tokens or padding were changed")
            first = []
    return Outcome(True)


@check("cache dtype", "Keys and values are stored in a narrower type than the model computes in.")
def cache_dtype(lab: Lab) -> Outcome:
    tokens, seen = lab.draw(1, 6, 9), False
    copy = lab.judge.copy if lab.given is None else float64_copy(lab.decoder, tokens)
    for decoder in filter(None, (lab.decoder, copy)):
        logits, state = decoder.step(tokens.clone(), decoder.start(*tokens.shape))
        own = logits.dtype if decoder is copy else precision(decoder, tokens)
        for tensor in stored(state):
            seen = True
            if eps(tensor.dtype) > eps(own):
                note = f"{tensor.dtype} stored by a decoder that computes in {own}"
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
    tokens, split = lab.texts.long[:, :16], pieces(min(16, lab.limit), 8, 1)
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
    logits, state = feed(lab.decoder, lab.texts.long[:, :prompt], [prompt], state)
    text = [lab.texts.long[:, :prompt]]
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
