"""Files of every kind to pixels inside tf.data, against the reader of all commands; parts against
wholes.
"""

import numpy as np
import pytest
import tensorflow as tf
from turned_photos import KINDS, ORIENTATIONS, photo, scene

from keras_vit.data.decoding import decode_file, decode_jpeg_or_png, decode_window
from keras_vit.photos import read_pixels

pytestmark = pytest.mark.tensorflow


@pytest.mark.parametrize("kind", KINDS)
def test_training_sees_the_pixels_that_predict_sees(kind: str):
    if kind == "heic":
        pytest.importorskip("pillow_heif").register_heif_opener()
    files = [photo(kind, held) for held in ORIENTATIONS]
    found = tf.data.Dataset.from_tensor_slices(files).map(decode_file, num_parallel_calls=2)
    for file, pixels in zip(files, found.as_numpy_iterator(), strict=True):
        np.testing.assert_array_equal(pixels, read_pixels(file))


@pytest.mark.parametrize("kind", ["jpg", "progressive.jpg", "grey.jpg", "png", "webp"])
def test_a_part_is_cut_out_of_the_upright_photo(kind: str):
    files, windows = [], []
    rng = np.random.default_rng(0)
    for held in ORIENTATIONS:
        files.append(photo(kind, held, scene(41, 57, seed=held)))
        height, width = rng.integers(1, 42), rng.integers(1, 58)
        windows.append([rng.integers(0, 42 - height), rng.integers(0, 58 - width), height, width])
    parts = tf.data.Dataset.from_tensor_slices((files, np.array(windows, np.int32)))
    parts = parts.map(
        lambda file, window: decode_window(file, lambda _: window)
    ).as_numpy_iterator()
    for file, (top, left, height, width), part in zip(files, windows, parts, strict=True):
        np.testing.assert_array_equal(
            part, read_pixels(file)[top : top + height, left : left + width]
        )


def verdict(decode, file: bytes) -> np.ndarray | str:
    """The pixels of a part of a photo, or "refused"."""
    try:
        return np.asarray(decode(tf.constant(file)))[:4, :4]
    except (ValueError, tf.errors.InvalidArgumentError):
        return "refused"


@pytest.mark.parametrize("held", [1, 6])
@pytest.mark.parametrize("kind", ["jpg", "progressive.jpg", "grey.jpg"])
def test_a_jpeg_that_was_cut_short_is_refused_whole_and_in_part(
    kind: str, held: int, capfd: pytest.CaptureFixture
):
    """The part is above the cut, and libjpeg prints nothing."""
    file = photo(kind, held, scene(64, 48))
    small = len(file)
    for length in (2, 4, 40, small // 3, small // 2, small - 40, small - 2, small - 1):
        capfd.readouterr()
        for decode in (decode_file, lambda file: decode_window(file, lambda _: [0, 0, 4, 4])):
            assert verdict(decode, file[:length]) == "refused", length
        assert capfd.readouterr().err == ""
    with pytest.raises(ValueError, match="truncated"):  # as for `predict`
        read_pixels(file[:-2])


@pytest.mark.parametrize("held", [1, 6])
@pytest.mark.parametrize("tail", [b"\0" * 40, b"video\xff\xd8\xff", b"\n"])
@pytest.mark.parametrize("end", [None, -2], ids=["whole", "no end marker"])
def test_what_follows_a_jpeg_changes_nothing(held: int, tail: bytes, end: int | None):
    """A picture without its end marker is read, or refused, as by `predict`."""
    file = photo("jpg", held, scene(41, 57))[:end] + tail
    expected = verdict(lambda _: read_pixels(file), file)
    for decode in (decode_file, lambda file: decode_window(file, lambda _: [0, 0, 4, 4])):
        np.testing.assert_array_equal(verdict(decode, file), expected)


def test_the_window_is_drawn_for_the_upright_shape():
    lower_right = decode_window(
        tf.constant(photo("jpg", 6)), lambda shape: tf.stack([shape[0] - 3, shape[1] - 5, 3, 5])
    )
    np.testing.assert_array_equal(lower_right, read_pixels(photo("jpg", 6))[-3:, -5:])


def test_outside_a_graph_nothing_is_traced(monkeypatch):
    """TensorFlow warns of functions that are traced for each file, as in pictures of a report."""
    monkeypatch.delattr(tf, "function")
    for kind in ("jpg", "png", "webp"):
        file = photo(kind, 6)
        np.testing.assert_array_equal(decode_file(tf.constant(file)), read_pixels(file))
        part = decode_window(tf.constant(file), lambda shape: tf.constant([1, 2, 3, 4]))
        np.testing.assert_array_equal(part, read_pixels(file)[1:4, 2:6])


def test_what_is_exported_runs_no_python():
    graph = tf.function(
        decode_jpeg_or_png, input_signature=[tf.TensorSpec([], tf.string)]
    ).get_concrete_function()
    names = {node.op for node in graph.graph.as_graph_def().node}
    names |= {
        node.op
        for function in graph.graph.as_graph_def().library.function
        for node in function.node_def
    }
    assert "DecodeJpeg" in names and not any("PyFunc" in name for name in names)


def test_what_cannot_be_read_is_said_in_one_sentence_and_not_with_a_traceback():
    """In a graph, TensorFlow logs each such error, whether or not somebody handles it."""
    files = tf.data.Dataset.from_tensors(tf.constant(b"rubbish"))
    with pytest.raises(tf.errors.InvalidArgumentError) as error:
        list(files.map(decode_file))
    assert "cannot identify image file" in str(error.value)
    assert "Traceback" not in str(error.value)
