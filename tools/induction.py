"""Record what the heads of a real pretrained model do, for chapter 10: needs `make real-model`.

    python tools/induction.py       writes kvlib/data/induction.json

SmolLM2-135M-Instruct has grouped heads (three query heads read one key-value head) and rotary
positions (queries and keys are turned by their position before they meet; the cache holds turned
keys). Weights are those of transformers' plain attention in float32, nothing is fitted or chosen by
eye: the two heads recorded in full are those with the highest scores.
"""

import contextlib
import json
from pathlib import Path
from unittest import mock

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers.models.llama import modeling_llama as llama

import real_model
from kvlib import corpus, look

OUT = Path(__file__).parent.parent / "kvlib" / "data" / "induction.json"
PASSAGES, LENGTH = 16, 60
SENTENCE = " The grey stoat borrowed seven copper lanterns from Mrs Quill."
HOW = (
    "SmolLM2-135M-Instruct, weights of about 4 bits turned back into float32, by tools/induction.py"
)


@contextlib.contextmanager
def attention():
    """A list that receives (q, k, v), each (B, H, T, D), of every layer and pass in the `with`."""
    seen, plain = [], llama.eager_attention_forward

    def watch(module, q, k, v, *args, **kwargs):
        group = q.shape[1] // k.shape[1]  # query heads that share one key-value head
        seen.append((q, *(rows.repeat_interleave(group, 1) for rows in (k, v))))
        return plain(module, q, k, v, *args, **kwargs)

    with mock.patch.object(llama, "eager_attention_forward", watch):
        yield seen


@torch.no_grad()
def weights(model, tokens: Tensor) -> tuple[Tensor, Tensor]:
    """Attention weights (L, B, H, T, T) and logits (B, T, V) of one pass over `tokens`."""
    with attention() as seen:
        logits = model(tokens, use_cache=False).logits
    return torch.stack([look.attention(q, k) for q, k, _ in seen]), logits


def losses(logits: Tensor, tokens: Tensor) -> Tensor:
    """-log p in nats (B, T - 1) of each token after the first."""
    return F.cross_entropy(logits[:, :-1].mT, tokens[:, 1:], reduction="none")


@torch.no_grad()
def run(model, tokenizer, tokens: Tensor, prompt: int) -> look.Run:
    """A prefill of the first `prompt` of `tokens` (1, N), then a decode step for each later one.

    The later tokens are given, whatever the model finds likeliest, and read from its own cache.
    """
    queries, chosen, cache = [], [], None
    for fresh in (tokens[:, :prompt], *tokens[:, prompt:].split(1, 1)):
        with attention() as layers:
            out = model(fresh, cache=cache, use_cache=True)
        cache = out.cache
        likely = out.logits[0].softmax(-1).max(-1)
        chosen += zip(likely.indices.tolist(), likely.values.tolist(), strict=True)
        queries.append(torch.cat([q for q, _, _ in layers]))
    q = torch.cat(queries, 2)
    k, v = (torch.cat([layer[part] for layer in layers]) for part in (1, 2))

    def word(token: int) -> str:
        return "".join(look.MARKS.get(c, c) for c in tokenizer.decode([token]))

    words = [word(token) for token in tokens[0].tolist()]
    told = [(word(token), round(p, 3)) for token, p in chosen]
    return look.Run(words, prompt, q, k, v, look.attention(q, k), told)


def listed(numbers: Tensor, digits: int) -> list:
    """The numbers as nested lists, rounded."""
    array = numbers.double().numpy().round(digits) + 0.0  # no -0.0
    return array.tolist()


def head_of(scores: Tensor) -> tuple[int, int]:
    """Layer and head of the largest of `scores` (L, H)."""
    return divmod(int(scores.argmax()), scores.shape[1])


def record(model, tokenizer) -> dict:
    """Scores of all heads, losses on repeated text, and a run of the two heads that score most."""
    text = torch.tensor(tokenizer(corpus.TEMPEST.read_text("utf-8")).input_ids)
    starts = torch.linspace(0, len(text) - 128, PASSAGES).long()
    read, _ = weights(model, text[starts[:, None] + torch.arange(128)])
    scores = look.scores(read) | {"entropy": look.entropy(read)}
    random = torch.Generator().manual_seed(0)
    nonsense = torch.randint(1000, 20000, (PASSAGES, LENGTH), generator=random)
    scores["induction"] = look.induction(weights(model, nonsense.repeat(1, 2))[0], LENGTH)
    passages = text[starts[:, None] + torch.arange(LENGTH)].repeat(1, 2)
    loss = losses(weights(model, passages)[1], passages)
    gain = float((loss[:, : LENGTH - 1] - loss[:, LENGTH:]).mean())
    once = tokenizer(SENTENCE, return_tensors="pt").input_ids
    seen = run(model, tokenizer, once.repeat(1, 2), once.shape[1])
    heads = {}
    for name in ("induction", "first"):
        layer, head = head_of(scores[name])
        rows = {part: listed(getattr(seen, part)[layer, head], 2) for part in "qkv"}
        rows["weights"] = listed(seen.weights[layer, head], 4)
        heads[name] = dict(layer=layer, head=head) | rows
    return dict(
        how=HOW,
        passages=PASSAGES,
        length=LENGTH,
        scores={name: listed(found, 3) for name, found in scores.items()},
        repeated_gain=round(gain, 3),
        words=seen.words,
        prompt=seen.prompt,
        chosen=seen.chosen,
        heads=heads,
    )


def main() -> None:
    model, tokenizer = real_model.load()
    model.set_attn_implementation("eager")
    OUT.write_text(json.dumps(record(model, tokenizer), ensure_ascii=False) + "\n", "utf-8")
    print(f"{OUT.name}: {OUT.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
