"""The order of examples: permutations that need no memory."""

import numpy as np
import pytest

tf = pytest.importorskip("tensorflow")

from keras_vit.data import order  # noqa: E402

pytestmark = pytest.mark.tensorflow


def indices(
    count: int, num_examples: int, seed: int = 0, **options
) -> tuple[np.ndarray, np.ndarray]:
    epochs, found = order.examples_at(
        tf.range(count, dtype=tf.int64), num_examples, seed=seed, **options
    )
    return epochs.numpy(), found.numpy()


@pytest.mark.parametrize("num_examples", [1, 2, 3, 7, 64, 1000])
def test_every_epoch_is_a_permutation(num_examples: int):
    epochs, found = indices(3 * num_examples, num_examples)
    for epoch in range(3):
        assert sorted(found[epochs == epoch]) == list(range(num_examples))


def test_epochs_and_seeds_differ():
    _, first = indices(2000, 1000)
    _, other = indices(2000, 1000, seed=1)
    assert (first[:1000] == first[1000:]).sum() < 8  # 1 is expected
    assert (first == other).sum() < 10
    assert abs(np.corrcoef(np.arange(1000), first[:1000])[0, 1]) < 0.15  # 5 standard errors


@pytest.mark.parametrize("num_examples", [100, 1000, 50_000])
def test_batches_mix_the_classes_as_chance_would(num_examples: int):
    # Sorted by class, as a folder is. Chi squared over its 9 degrees of freedom is 1 on average.
    classes = indices(num_examples, num_examples)[1] * 10 // num_examples
    batches = np.split(classes[: num_examples // 50 * 50], num_examples // 50)
    counts = np.stack([np.bincount(batch, minlength=10) for batch in batches])
    ratio = ((counts - 5) ** 2 / 5).sum(-1).mean() / 9
    without_return = 1 - 50 / num_examples  # drawn without return, so a little more even
    assert ratio < 1.7 * without_return + 0.3


@pytest.mark.parametrize("num_examples", [100, 1000])
def test_neighbours_do_not_stay_together(num_examples: int):
    _, found = indices(20 * num_examples, num_examples)
    together = (np.abs(np.diff(found)) == 1).mean()
    assert together < 2 * 2 / num_examples


def test_any_position_can_be_asked_for_alone():
    _, whole = indices(50, 17)
    for position in (0, 16, 17, 49):
        alone = order.examples_at(tf.constant([position], tf.int64), 17, seed=0)[1]
        assert alone.numpy()[0] == whole[position]


def test_without_shuffling_the_index_counts_up():
    _, found = indices(5, 3, shuffle=False)
    assert found.tolist() == [0, 1, 2, 0, 1]


def test_seeds_are_all_different():
    seeds = [
        order.place_seed(
            order.example_seed(seed, tf.constant(epoch, tf.int64), tf.constant(index, tf.int64)),
            place,
        )
        for seed in range(2)
        for epoch in range(3)
        for index in range(5)
        for place in range(2)
    ]
    seeds += [
        order.batch_seed(seed, tf.constant(step, tf.int64))
        for seed in range(2)
        for step in range(3)
    ]
    assert len({tuple(seed.numpy().tolist()) for seed in seeds}) == len(seeds)
