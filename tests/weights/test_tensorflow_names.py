import numpy as np
import pytest

from keras_vit.weights.entries import Entry
from keras_vit.weights.tensorflow_names import drop_model, to_pytorch, translate_name

pytestmark = pytest.mark.once


def entry(name, array):
    return Entry(name=name, shape=array.shape, dtype=array.dtype, load=lambda: array)


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        ("vit/embeddings/position_embeddings:0", "vit.embeddings.position_embeddings"),
        ("vit/encoder/layer_._11/output/dense/bias:0", "vit.encoder.layer.11.output.dense.bias"),
        ("vit/layernorm/gamma:0", "vit.layernorm.weight"),
        ("vit/layernorm/beta:0", "vit.layernorm.bias"),
        ("classifier/kernel:0", "classifier.weight"),
        ("clip/visual_projection/kernel:0", "visual_projection.weight"),
        ("clip/logit_scale:0", "logit_scale"),
        ("Transformer/encoder_norm/scale", "Transformer/encoder_norm/scale"),
        ("clip.weight", "clip.weight"),
    ],
)
def test_names_of_each_kind(theirs, ours):
    assert translate_name(theirs) == ours


def test_kernels_get_the_axes_of_pytorch():
    dense, convolution = np.arange(6.0).reshape(2, 3), np.arange(120.0).reshape(2, 3, 4, 5)
    table = np.arange(6.0).reshape(2, 3)
    found = to_pytorch(
        [
            entry("a/kernel:0", dense),
            entry("b/kernel:0", convolution),
            entry("c/embeddings:0", table),
            entry("d/kernel", dense),
        ]
    )
    assert [x.name for x in found] == ["a.weight", "b.weight", "c.weight", "d/kernel"]
    assert [x.shape for x in found] == [(3, 2), (5, 4, 2, 3), (2, 3), (2, 3)]
    assert all(x.load().shape == x.shape for x in found)
    # An input of one feature, or of one pixel and channel, picks a row of TensorFlow's kernel.
    np.testing.assert_array_equal(found[0].load()[:, 1], dense[1])
    np.testing.assert_array_equal(found[1].load()[:, 3, 1, 2], convolution[1, 2, 3])
    assert np.shares_memory(found[1].load(), convolution)


def test_only_names_of_tensorflow_lose_their_model():
    assert drop_model("tf_vi_t_model_1/vit/layernorm/beta:0") == "vit/layernorm/beta:0"
    assert drop_model("scale:0") == "scale:0"
    assert drop_model("vit.layernorm.bias") == "vit.layernorm.bias"
