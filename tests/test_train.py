"""Training: resumable to the bit, exact over the full vocabulary, and judged on unseen text."""

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from kvlib import GPT2Config, corpus, load, quality, train
from kvlib.ngram import KneserNey

SMALL = GPT2Config(block_size=16, vocab_size=300, n_layer=1, n_head=2, n_embd=16)


def some_ids() -> dict[str, torch.Tensor]:
    """A language of 40 ids in which each id is followed by its double."""
    ids = torch.tensor([(7 * 2**n) % 41 for n in range(400)])
    return {"train": ids, "held_out": ids[:100]}


def test_a_resumed_run_gives_the_weights_of_one_that_was_not_stopped(tmp_path):
    how = dict(config=SMALL, batch_size=2, save_every=3)
    whole = train.train(some_ids(), tmp_path / "whole", steps=6, **how)

    class Stop(Exception):
        pass

    saves, save = [], train.save

    def save_and_stop(*args):
        save(*args)
        saves.append(args[-1])
        raise Stop

    train.save = save_and_stop
    try:
        with pytest.raises(Stop):
            train.train(some_ids(), tmp_path / "part", steps=6, **how)
    finally:
        train.save = save
    assert saves == [3]
    resumed = train.train(some_ids(), tmp_path / "part", steps=6, **how)
    for name, tensor in whole.state_dict().items():
        assert tensor.equal(resumed.state_dict()[name]), name


def test_training_learns(tmp_path):
    model = train.train(some_ids(), tmp_path, config=SMALL, steps=150, batch_size=4)
    rows = some_ids()["held_out"][:17]
    with torch.inference_mode():
        got = F.cross_entropy(model(rows[None, :-1])[0], rows[1:])
    assert got < math.log(20)  # 20 ids occur


def test_the_shared_row_makes_the_softmax_that_of_the_full_vocabulary():
    ids = some_ids()["train"]
    seen = torch.unique(ids)
    compacted = train.GPT2(GPT2Config(**{**vars(SMALL), "vocab_size": len(seen) + 1}))
    full = train.restore_vocabulary(compacted, seen, SMALL)
    rows = ids[:34].view(2, 17)
    got = train.loss(compacted, train.compact(rows, seen), SMALL.vocab_size - len(seen))
    want = F.cross_entropy(full(rows[:, :-1]).flatten(0, 1), rows[:, 1:].flatten())
    assert abs(float((got - want).detach())) < 1e-5


def test_ids_that_were_never_seen_share_the_last_row():
    seen = torch.tensor([2, 5, 9])
    assert train.compact(torch.tensor([9, 2, 3, 5, 299, 0]), seen).tolist() == [2, 0, 3, 1, 3, 3]


def test_orthogonal_pushes_singular_values_towards_1():
    for shape in ((24, 8), (8, 24)):
        matrix = torch.randn(shape, generator=torch.Generator().manual_seed(0))
        values = torch.linalg.svdvals(train.orthogonal(matrix))
        assert values.min() > 0.5 and values.max() < 1.3


def test_the_schedule_warms_up_and_comes_down():
    shares = [train.schedule(step, 1000) for step in range(1000)]
    assert shares[0] == pytest.approx(1 / train.WARMUP_STEPS)
    assert max(shares) == shares[train.WARMUP_STEPS] == 1
    assert shares[-1] == pytest.approx(0.05, abs=1e-3)


@pytest.mark.parametrize("order", [1, 2, 3])
def test_n_gram_probabilities_sum_to_one(order):
    random = np.random.default_rng(0)
    model = KneserNey(random.integers(0, 6, 200), order, 9)
    for context in ([3, 1], [8, 8], [0, 5]):
        past = context[len(context) - (order - 1) :] if order > 1 else []
        total = sum(math.exp(-model.losses(np.array([*past, word]))[0]) for word in range(9))
        assert total == pytest.approx(1)


def test_a_bigram_learns_a_language_of_bigrams():
    ids = some_ids()["train"].numpy()
    losses = [KneserNey(ids, order, 41).losses(ids).mean() for order in (1, 2)]
    assert losses[1] < 0.2 < losses[0]


def test_losses_see_exactly_the_context_they_are_given():
    model = load("nano", weights="random")
    ids = torch.arange(40)
    one = quality.losses(model, ids, torch.tensor([20]), 8)
    changed = ids.clone()
    changed[:12] = 7
    assert quality.losses(model, changed, torch.tensor([20]), 8).equal(one)
    changed[12] = 7
    assert not quality.losses(model, changed, torch.tensor([20]), 8).equal(one)
    with pytest.raises(ValueError, match="later targets"):
        quality.losses(model, ids, torch.tensor([5]), 8)


def test_the_folio_editions_are_left_out(tmp_path):
    import io
    import tarfile

    with tarfile.open(tmp_path / "a.tar.gz", "w:gz") as tar:
        for name in ("macbeth_gut.txt", "macbeth_gut_f.txt", "hamlet_gut.txt", "metadata.txt"):
            info = tarfile.TarInfo(corpus.FOLDER + name)
            info.size = 4
            tar.addfile(info, io.BytesIO(b"Text"))
    assert list(corpus.works(tmp_path / "a.tar.gz")) == ["hamlet", "macbeth"]
    ids = corpus.tokens(tmp_path / "a.tar.gz")
    assert ids["train"].tolist() == ids["held_out"].tolist() == [50256, 8206, 198]
