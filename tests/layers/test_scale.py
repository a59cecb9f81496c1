import keras
import numpy as np
from layer_contract import check_layer

from keras_vit.layers import LayerScale


def test_it_keeps_the_layer_contract(tmp_path):
    check_layer(
        lambda **k: LayerScale(**k),
        (2, 6, 5),
        output_shape=(2, 6, 5),
        num_weights=1,
        tmp_path=tmp_path,
    )


def test_each_channel_has_a_factor_which_is_small_at_first():
    layer, x = LayerScale(), np.ones((2, 3, 4), "float32")
    np.testing.assert_allclose(keras.ops.convert_to_numpy(layer(x)), 1e-5)
    layer.gamma.assign([1.0, 2.0, -1.0, 0.0])
    np.testing.assert_array_equal(keras.ops.convert_to_numpy(layer(x))[1, 2], [1, 2, -1, 0])
