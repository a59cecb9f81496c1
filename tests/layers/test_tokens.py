import keras
import numpy as np
from layer_contract import check_layer

from keras_vit.layers import ClassToken


def test_class_token_keeps_the_layer_contract(tmp_path):
    check_layer(lambda **k: ClassToken(**k), (2, 6, 5), output_shape=(2, 7, 5), num_weights=1, tmp_path=tmp_path)


def test_the_token_comes_first_and_starts_at_zero():
    x = np.ones((2, 3, 4), "float32")
    layer = ClassToken()
    output = keras.ops.convert_to_numpy(layer(x))
    np.testing.assert_array_equal(output[:, 0], 0)
    np.testing.assert_array_equal(output[:, 1:], x)
    layer.cls.assign(np.arange(4.0).reshape(1, 1, 4))
    np.testing.assert_array_equal(keras.ops.convert_to_numpy(layer(x))[:, 0], [range(4)] * 2)
