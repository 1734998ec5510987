"""Every planted bug is found by the check that names it, and every check is needed or explained."""

import pytest
import torch

from kvlib import bugs, decoders, judge, parity

NAMES = list(bugs.CATALOGUE)
# Families of FACTS that a reader will meet: the catalogue has a bug of each.
FAMILIES = "positions mask storage dtype batch limit rollback sharing reference".split()


@pytest.fixture(scope="module")
def model():
    return bugs.small_model()


@pytest.fixture(scope="module")
def found(model):
    """The matrix, executed once: bug -> names of the checks that fail on it."""
    return bugs.matrix(model)


def test_the_catalogue_has_24_bugs_or_more_of_every_family():
    assert len(NAMES) >= 24
    assert {bug.family for bug in bugs.CATALOGUE.values()} == set(FAMILIES)


def test_bugs_that_were_not_seen_are_named():
    assert set(bugs.IMAGINED) < set(NAMES) and len(set(NAMES) - set(bugs.IMAGINED)) >= 24


def test_a_patched_decoder_patches_the_last_position_too(model):
    tokens = torch.arange(6)[None]
    decoder = bugs.CATALOGUE["restart"].decoder(model)
    for step in (decoder.step, decoder.last):
        _, state = decoder.step(tokens, decoder.start(1, 12))
        wrong = step(tokens + 6, state)[0][:, -1]
        right = decoders.from_kvlib(model).full(torch.arange(12)[None])[:, -1]
        assert (wrong - right).abs().max() > 1e-2


def test_the_matrix_runs_on_a_small_model_with_a_block_above_300(model):
    config = model.config
    assert (config.n_layer, config.n_embd) == (2, 32) and config.block_size > 300


@pytest.mark.parametrize("name", NAMES)
def test_the_named_check_finds_the_bug(found, name):
    assert bugs.CATALOGUE[name].check in found[name]


@pytest.mark.parametrize("name", NAMES)
def test_a_symptom_is_one_short_line(name):
    symptom = bugs.CATALOGUE[name].symptom
    assert 10 < len(symptom) <= 60 and "\n" not in symptom


@pytest.mark.parametrize("name", NAMES)
def test_the_named_check_finds_the_bug_when_it_runs_alone(model, name):
    bug = bugs.CATALOGUE[name]
    report = parity.check(bug.decoder(model), checks=[bug.check])
    assert not report.ok and report[bug.check].verdict == "fail"


def test_nothing_is_found_in_correct_code(found):
    assert found["correct"] == []


@pytest.mark.parametrize("check", parity.CHECKS)
def test_every_check_is_needed_or_says_why_it_stays(found, check):
    reason = parity.CHECKS[check].diagnostic
    assert bool(reason) != bool(bugs.needed(found, check))


def test_needed_agrees_with_trying_every_set_of_checks():
    """On matrices small enough to enumerate all minimal sets of checks."""
    import itertools
    import random

    rng = random.Random(0)
    checks = "abcd"
    for _ in range(200):
        rows = {str(i): rng.sample(checks, rng.randint(1, 4)) for i in range(4)}
        full = [
            set(chosen)
            for size in range(1, 5)
            for chosen in itertools.combinations(checks, size)
            if all(set(chosen) & set(row) for row in rows.values())
        ]
        minimal = [chosen for chosen in full if not any(other < chosen for other in full)]
        for check in checks:
            assert bool(bugs.needed(rows, check)) == any(check in chosen for chosen in minimal)


def test_one_token_at_a_time_misses_reversed_concatenation_and_chunks_find_it(found):
    assert "one token at a time" not in found["reversed-concat"]
    assert "long prompt then decode" not in found["reversed-concat"]
    assert "greedy tokens" not in found["reversed-concat"]
    assert "chunks" in found["reversed-concat"]


def test_text_hides_a_bug_that_logits_show(found):
    assert "greedy tokens" not in found["half-cache"]
    assert "one token at a time" in found["half-cache"]


def test_a_bug_changes_nothing_but_its_own_decoder(model):
    """Functions of kvlib.model are replaced only while a planted decoder runs."""
    tokens = torch.arange(9)[None]
    right = decoders.from_kvlib(model).full(tokens)
    for name in NAMES:
        decoder = bugs.CATALOGUE[name].decoder(model)
        decoder.step(tokens.clone(), decoder.start(1, 9))
    assert torch.equal(decoders.from_kvlib(model).full(tokens), right)


@pytest.mark.parametrize("name", ["reversed-concat", "half-cache", "off-by-one"])
def test_the_report_says_in_which_layer_the_difference_starts(model, name):
    """A wrong position shows before any block; rows in the wrong order first in layer 0."""
    row = parity.check(bugs.CATALOGUE[name].decoder(model), checks=["chunks"])["chunks"]
    start = "the embeddings" if name == "off-by-one" else "layer 0"
    assert row.where.endswith(f"starts in {start}")


def test_a_planted_bug_survives_the_copy_to_float64(model):
    """The twin that judges must be the same code, or a wrong reference would look right."""
    tokens = torch.arange(9)[None]
    for name in NAMES:
        twin = bugs.CATALOGUE[name].decoder(model).to_float64()
        assert twin.full(tokens).dtype == torch.float64
        assert type(twin) is type(bugs.CATALOGUE[name].decoder(model))


def test_compare_gives_the_place_of_the_largest_difference(model):
    tokens = torch.randint(0, 97, (1, 12), generator=torch.Generator().manual_seed(0))
    wrong = bugs.CATALOGUE["restart"].decoder(model)
    found = parity.compare(wrong, decoders.from_kvlib(model), tokens, [6, 1, 5])
    assert found.max_abs_diff > 1e-2 and found.where.row == 0
    assert found.where.position >= 6 and found.where.chunk in (1, 2)
    gap = judge.gaps(judge.run(wrong, tokens, [6, 1, 5]), wrong.full(tokens))
    assert gap[0, found.where.position] == gap.max() == found.max_abs_diff
