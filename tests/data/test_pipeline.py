"""Batches: the same from any step, for any number of threads and workers; each image counted
once.
"""

import subprocess
import sys

import numpy as np
import pytest
from warm import HUNG_SECONDS

tf = pytest.importorskip("tensorflow")

from keras_vit.data import order, pipeline, reading, sources, transforms  # noqa: E402
from keras_vit.data.randaugment import rand_augment  # noqa: E402

pytestmark = pytest.mark.tensorflow

N = 23
DRAWN = [transforms.inception_crop(16), transforms.flip_left_right, transforms.to_uint8]
AUGMENTED = [*DRAWN, rand_augment(2, 9)]  # tracing its sixteen operations takes seconds


@pytest.fixture(scope="module")
def source() -> sources.Source:
    images = np.random.RandomState(0).randint(0, 256, (N, 20, 20, 3)).astype("uint8")
    return sources.arrays(images, np.arange(N) % 5, class_names=list("abcde"))


def batches(source: sources.Source, transforms_=DRAWN, **options) -> list[tuple[np.ndarray, ...]]:
    options = {"batch_size": 6, "seed": 3, "total_steps": 9, **options}
    dataset = pipeline.training_batches(source, transforms_, **options)
    return [tuple(part.numpy() for part in batch) for batch in dataset]


def check_same(found: list, expected: list) -> None:
    assert len(found) == len(expected)
    for a, b in zip(found, expected, strict=True):
        assert all((x == y).all() and x.dtype == y.dtype for x, y in zip(a, b, strict=True))


@pytest.mark.parametrize(
    ("steps", "drawn", "mixup_alpha"),
    [
        ((1, 8), DRAWN, 0.0),
        ((4,), DRAWN, 0.2),
        pytest.param((4,), AUGMENTED, 0.2, marks=pytest.mark.slow),
    ],
)
def test_a_run_can_begin_at_any_step(source, steps: tuple, drawn: list, mixup_alpha: float):
    whole = batches(source, drawn, mixup_alpha=mixup_alpha)
    for start in steps:
        check_same(batches(source, drawn, mixup_alpha=mixup_alpha, start_step=start), whole[start:])


def test_the_number_of_threads_changes_nothing(source, monkeypatch):
    whole = batches(source, mixup_alpha=0.2)
    monkeypatch.setattr(pipeline, "_BATCHES_AT_ONCE", 1)
    read_batch = pipeline.read_batch
    for parallelism in (1, 7):
        monkeypatch.setattr(
            pipeline,
            "read_batch",
            lambda *a, p=parallelism, **o: read_batch(*a, **o, parallelism=p),
        )
        check_same(batches(source, mixup_alpha=0.2), whole)


@pytest.mark.parametrize(
    ("num_workers", "mixup_alpha"),
    [
        (2, 0.0),
        (3, 0.2),
        *(pytest.param(*case, marks=pytest.mark.slow) for case in ((2, 0.2), (3, 0.0))),
    ],
)
def test_workers_together_read_what_one_reads(source, num_workers: int, mixup_alpha: float):
    whole = batches(source, mixup_alpha=mixup_alpha)
    shares = [
        batches(
            source,
            mixup_alpha=mixup_alpha,
            share=pipeline.Share(rows=6, num_workers=num_workers, worker_index=index),
        )
        for index in range(num_workers)
    ]
    joined = [
        tuple(np.concatenate(parts) for parts in zip(*step, strict=True))
        for step in zip(*shares, strict=True)
    ]
    check_same(joined, whole)


def test_a_workers_rows_are_cut_for_its_replicas(source):
    whole = batches(source)
    cut = batches(source, share=pipeline.Share(rows=6, num_parts=3))
    assert len(cut) == 27 and cut[0][0].shape == (2, 16, 16, 3)
    check_same(
        [
            tuple(np.concatenate(p) for p in zip(*cut[i : i + 3], strict=True))
            for i in range(0, 27, 3)
        ],
        whole,
    )


def test_epochs_follow_each_other_without_a_seam(source):
    labels = np.concatenate([batch[1] for batch in batches(source, [], total_steps=23)])
    for epoch in range(6):
        counts = np.bincount(labels[epoch * N : (epoch + 1) * N], minlength=5)
        assert counts.tolist() == [5, 5, 5, 4, 4]


def test_rows_that_fill_up_weigh_nothing(source):
    plain = batches(source, mixup_alpha=0.2)
    filled = batches(source, mixup_alpha=0.2, share=pipeline.Share(rows=8))
    for a, b in zip(plain, filled, strict=True):
        assert b[2].tolist() == [1] * 6 + [0] * 2
        assert (a[0] == b[0][:6]).all() and (a[1] == b[1][:6]).all()


def test_mixup_mixes_each_image_with_the_one_before(source):
    plain, shares = batches(source, [transforms.to_uint8]), []
    for (images, labels, _), (mixed, targets, _) in zip(
        plain, batches(source, [transforms.to_uint8], mixup_alpha=0.5), strict=True
    ):
        scaled, one_hot = images / 127.5 - 1.0, np.eye(5)[labels]
        # The coefficient is one for the batch: read it off where two labels differ.
        row = next(i for i in range(6) if labels[i] != labels[i - 1])
        share = targets[row, labels[row]]
        assert 0.5 <= share <= 1
        shares.append(share)
        expected = share * scaled + (1 - share) * np.roll(scaled, 1, axis=0)
        np.testing.assert_allclose(mixed, expected, atol=2e-3)
        np.testing.assert_allclose(
            targets, share * one_hot + (1 - share) * np.roll(one_hot, 1, axis=0), atol=1e-6
        )
    assert len(np.unique(shares)) == len(shares) > 1  # drawn anew for each batch


def test_each_draw_of_an_example_has_a_key_of_its_own(source):
    """By the seed of the run, the example and the transform; and so has the noise."""

    def first(_image: tf.Tensor, key: tf.Tensor) -> tf.Tensor:
        return key[None]

    def second(keys: tf.Tensor, key: tf.Tensor) -> tf.Tensor:
        return tf.concat([keys, key[None]], axis=0)

    keys, noise, order_of = [], [], {}
    for seed in (3, 4):
        options = {"batch_size": N, "seed": seed, "total_steps": 1, "noise_length": 2}
        (batch,) = pipeline.training_batches(source, [first, second], **options)
        keys += [tuple(key) for key in batch[0][0].numpy().reshape(-1, 2)]
        noise += batch[0][1].numpy().ravel().tolist()
        order_of[seed] = batch[1].numpy().tolist()
    assert len(set(keys)) == len(keys) == len(set(noise)) == 2 * N * 2
    assert order_of[3] != order_of[4]


def test_the_shares_of_mixup_follow_the_seed(source):
    """Of two classes, the larger target is the share of an image in its mixture; of one, it is 1."""
    shares = {
        seed: [
            targets.max(axis=-1).min()
            for _, targets, _ in batches(source, [], seed=seed, mixup_alpha=0.5, total_steps=3)
        ]
        for seed in (3, 4)
    }
    assert not set(shares[3]) & set(shares[4])


@pytest.mark.parametrize("count", [1, 3, 23])
@pytest.mark.parametrize("batch_size", [1, 7, 128])
@pytest.mark.parametrize("num_workers", [1, 2])
def test_evaluation_counts_each_image_once(source, count: int, batch_size: int, num_workers: int):
    some = source.subset(range(count))
    rows = pipeline.padded_rows(batch_size, num_workers)
    seen, steps = [], set()
    for index in range(num_workers):
        share = pipeline.Share(rows=rows, num_workers=num_workers, worker_index=index)
        found = list(pipeline.evaluation_batches(some, [], batch_size=batch_size, share=share))
        steps.add(len(found))
        for images, _, weights in found:
            assert images.shape[0] == rows // num_workers
            seen += [image.tobytes() for image in images.numpy()[weights.numpy() == 1]]
    expected = [some.read(tf.constant(i, tf.int64))[0].numpy().tobytes() for i in range(count)]
    assert sorted(seen) == sorted(expected)
    assert len(steps) == 1  # a worker with more steps than the others would wait for them for ever


@pytest.fixture
def folder_with_bad_files(tmp_path):
    for number in range(12):
        folder = tmp_path / ("a" if number % 2 else "b")
        folder.mkdir(exist_ok=True)
        pixels = np.random.RandomState(number).randint(0, 256, (40, 40, 3)).astype("uint8")
        encoded = tf.io.encode_jpeg(pixels).numpy()
        broken = {3: encoded[: len(encoded) // 2], 4: b"", 8: b"no image at all"}
        (folder / f"{number:02}.jpg").write_bytes(broken.get(number, encoded))
    return sources.image_folder(tmp_path)


def test_unreadable_images_weigh_nothing_and_are_named(folder_with_bad_files):
    source = folder_with_bad_files
    bad = reading.Unreadable(source)
    chosen = [transforms.inception_crop(16), transforms.to_uint8]
    for _ in range(2):  # named once, however often they are met
        found = list(pipeline.evaluation_batches(source, chosen, batch_size=5, unreadable=bad))
        assert sum(float(tf.reduce_sum(weights)) for *_, weights in found) == 9
    assert sorted(place[-6:] for place in bad.places) == ["03.jpg", "04.jpg", "08.jpg"]
    assert all(
        image.any()
        for images, _, weights in found
        for image in images.numpy()[weights.numpy() == 1]
    )


def test_bad_files_are_remembered_by_the_next_part_of_a_run(folder_with_bad_files, tmp_path):
    chosen, record = [transforms.resize(16)], tmp_path / "unreadable.txt"
    for _ in range(2):
        bad = reading.Unreadable(folder_with_bad_files, record=record)
        list(
            pipeline.evaluation_batches(folder_with_bad_files, chosen, batch_size=5, unreadable=bad)
        )
    assert [place[-6:] for place in sorted(reading.Unreadable(folder_with_bad_files, record=record).places)] == [
        "03.jpg", "04.jpg", "08.jpg",
    ]  # fmt: skip
    assert len(record.read_text().splitlines()) == 3


def test_bad_files_move_no_other_image(folder_with_bad_files):
    source = folder_with_bad_files
    chosen = [transforms.inception_crop(16), transforms.to_uint8]
    with_bad = batches(source, chosen, batch_size=6, total_steps=4)
    later = batches(source, chosen, batch_size=6, total_steps=4, start_step=2)
    check_same(later, with_bad[2:])
    assert [int(weights.sum()) for *_, weights in with_bad] != [6] * 4


def test_mixup_leaves_the_partner_of_a_bad_image_alone(folder_with_bad_files):
    chosen, num_alone = [transforms.resize(8), transforms.to_uint8], 0
    plain = batches(folder_with_bad_files, chosen, total_steps=1)
    mixed = batches(folder_with_bad_files, chosen, total_steps=1, mixup_alpha=0.5)
    for (images, labels, weights), (found, targets, same) in zip(plain, mixed, strict=True):
        assert (same == weights).all() and np.isfinite(found).all()
        np.testing.assert_allclose(targets[weights == 1].sum(-1), 1, atol=1e-6)
        alone = (weights == 1) & (np.roll(weights, 1) == 0)
        np.testing.assert_allclose(found[alone], images[alone] / 127.5 - 1, atol=1e-5)
        np.testing.assert_allclose(targets[alone], np.eye(2)[labels[alone]], atol=1e-6)
        num_alone += alone.sum()
    assert num_alone


def test_a_disk_that_is_gone_ends_the_run(folder_with_bad_files, monkeypatch):
    monkeypatch.setattr(reading, "MOST_UNREADABLE", 0.0)
    for path in (folder_with_bad_files.locate(index) for index in range(12)):
        tf.io.gfile.remove(path)
    bad = reading.Unreadable(folder_with_bad_files)
    with pytest.raises(tf.errors.InvalidArgumentError, match="check that the disk is mounted"):
        list(
            pipeline.evaluation_batches(
                folder_with_bad_files, [transforms.resize(16)], batch_size=6, unreadable=bad
            )
        )
    assert "12 of the 12 images" in bad.fatal


def test_strict_names_the_first_bad_file(folder_with_bad_files):
    bad = reading.Unreadable(folder_with_bad_files, strict=True)
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"\.jpg cannot be read: "):
        list(
            pipeline.evaluation_batches(
                folder_with_bad_files, [transforms.resize(16)], batch_size=5, unreadable=bad
            )
        )


def test_a_batch_is_stamped_when_it_is_ready(source):
    stamps = []

    def stamp():
        stamps.append(1)
        return np.int64(0)

    assert len(batches(source, stamp=stamp)) == 9
    assert len(stamps) == 9


def noise_of(dataset) -> np.ndarray:
    return np.concatenate([batch[0][1].numpy() for batch in dataset])


def test_noise_is_a_function_of_seed_epoch_and_example(source):
    def draw(**options) -> np.ndarray:
        options = {"batch_size": 6, "seed": 3, "total_steps": 9, "noise_length": 16, **options}
        return noise_of(pipeline.training_batches(source, [], **options))

    whole = draw()
    assert whole.shape == (54, 16) and whole.dtype == np.float32
    assert len(np.unique(whole)) == whole.size  # of each image and each epoch
    assert 0 <= whole.min() < 0.01 and 0.99 < whole.max() < 1 and abs(whole.mean() - 0.5) < 0.05
    # a run that was resumed, on two workers with three replicas each: here is the second worker
    share = pipeline.Share(rows=6, num_workers=2, worker_index=1, num_parts=3)
    resumed = draw(start_step=4, share=share)
    np.testing.assert_array_equal(resumed.reshape(5, 3, 16), whole.reshape(9, 6, 16)[4:, 3:])
    epochs, indices = order.examples_at(tf.range(54, dtype=tf.int64), N, seed=4)
    other = order.example_noise(4, epochs[7], indices[7], 16)
    assert (other.numpy() != whole).all()


def test_batches_with_noise_have_the_images_of_batches_without(source):
    drawn = [transforms.flip_left_right, transforms.to_uint8]
    plain = batches(source, drawn, total_steps=3)
    noisy = pipeline.training_batches(
        source, drawn, batch_size=6, seed=3, total_steps=3, noise_length=4
    )
    for batch, ((images, _), labels, weights) in zip(plain, noisy, strict=True):
        check_same([batch], [(images.numpy(), labels.numpy(), weights.numpy())])


def test_the_noise_of_an_evaluation_depends_on_the_image_alone(source):
    found = noise_of(pipeline.evaluation_batches(source, [], batch_size=5, noise_length=8))[:N]
    epoch, indices = tf.constant(0, tf.int64), tf.range(N, dtype=tf.int64)
    expected = [order.example_noise(0, epoch, index, 8).numpy() for index in indices]
    assert len(np.unique(found)) == N * 8
    np.testing.assert_array_equal(found, expected)


@pytest.mark.slow
def test_bad_files_move_no_noise(folder_with_bad_files):
    options = {"batch_size": 8, "seed": 0, "total_steps": 2, "noise_length": 4}
    source = folder_with_bad_files
    readable = [transforms.resize(8)]
    noise, weights = (
        np.concatenate(parts)
        for parts in zip(
            *(
                (images[1].numpy(), weights.numpy())
                for images, _, weights in pipeline.training_batches(source, readable, **options)
            ),
            strict=True,
        )
    )
    blank = np.zeros((source.num_examples, 8, 8, 3), "uint8")
    others = sources.arrays(blank, np.zeros(len(blank), "int64"))
    expected = noise_of(pipeline.training_batches(others, readable, **options))
    assert 0 < (weights == 0).sum() < len(weights)
    np.testing.assert_array_equal(noise[weights > 0], expected[weights > 0])


def test_rows_that_do_not_divide_are_refused():
    with pytest.raises(ValueError, match="6 rows are not divisible into 4 workers"):
        pipeline.Share(rows=6, num_workers=4)
    with pytest.raises(ValueError, match="batch_size=0"):
        pipeline.padded_rows(0, 1)


END_OF_A_SCRIPT = """
import gc, sys, time
import tensorflow as tf
if {ours}:
    import keras_vit.data.pipeline
class Node: pass
def read(number):
    time.sleep(0.5)
    return number
# Eight at a time: at no moment is none of them in Python.
# More than anyone waits for, on a busy machine too: read to the end, nothing would hold the process up.
numbers = tf.data.Dataset.range(99_999)
batches = numbers.map(lambda number: tf.numpy_function(read, [number], tf.int64), num_parallel_calls=8).prefetch(99_998)
node = Node()
node.itself, node.iterator = node, iter(batches)  # as an error's traceback holds it
next(node.iterator)
gc.disable()
del node
print("the end", flush=True)
"""


def ends_while_images_are_read(ours: bool, seconds: float) -> bool:
    """Whether such a process ends within some seconds, and without an error."""
    command = [sys.executable, "-c", END_OF_A_SCRIPT.format(ours=ours)]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as process:
        try:
            assert process.stdout.readline() == "the end\n"
            return process.wait(seconds) == 0
        except subprocess.TimeoutExpired:
            return False
        finally:
            process.kill()


@pytest.mark.slow
def test_a_process_ends_though_images_are_being_read():
    assert ends_while_images_are_read(ours=True, seconds=HUNG_SECONDS)


@pytest.mark.slow
def test_without_us_such_a_process_hangs_or_crashes():
    """TensorFlow 2.21, nearly always: when this fails, the call at exit can go."""
    assert not all(ends_while_images_are_read(ours=False, seconds=10) for _ in range(5))
