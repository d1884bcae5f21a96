"""random_networks: of all kinds and sizes, as large as was promised, the same for the same seed."""

from __future__ import annotations

from tvm_rnn.bench.suites.random_networks import CELLS, MOST_VALUES, MOST_WEIGHTS, random_networks, random_sizes


def test_everything_is_drawn_and_nothing_is_too_large() -> None:
    found = random_networks(3)
    assert found == random_networks(3) and found[:20] == random_networks(3, 20)
    kinds = {name: {facts[name] for facts in found} for name in found[0]}
    assert kinds["cell"] == {*CELLS} and kinds["precision"] == {"bfloat16", "float16", "tf32"}
    assert kinds["layers"] == {*range(1, 7)} and kinds["directions"] == {1, 2}
    assert kinds["lengths"] == kinds["eager"] == {False, True}
    for name, least, most in (("input", 16, 3000), ("hidden", 16, 3000), ("batch", 1, 512), ("steps", 1, 2000)):
        assert least <= min(kinds[name]) <= 2 * least and most / 2 <= max(kinds[name]) <= most
        assert {size % 2 for size in kinds[name]} == {0, 1}
    for facts in found:
        assert facts["hidden"] * facts["batch"] * facts["steps"] <= MOST_VALUES
        assert 2 * facts["hidden"] ** 2 * facts["layers"] <= 2 * MOST_WEIGHTS or facts["layers"] == 1


def test_sizes_of_cpus_are_off_every_grid() -> None:
    found = random_sizes(0)
    assert found == random_sizes(0) != random_sizes(1) and len({*found}) == len(found) == 60
    cells, inputs, hidden, batch = map(set, zip(*found, strict=True))
    assert cells == {"lstm", "gru"} and 20 <= min(hidden) < 40 and 750 < max(hidden | inputs) <= 1500
    assert {1, 2} <= batch and 20 < max(batch) <= 40 and any(i != h for _, i, h, _ in found)
