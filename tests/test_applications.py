import importlib
from dataclasses import replace

import keras
import numpy as np
import pytest
from synthetic_checkpoint import checkpoint

import keras_vit
from keras_vit.variants import RESNET_VARIANTS, VIT_VARIANTS
from keras_vit.weights import layouts
from keras_vit.weights.restore import state

pytestmark = pytest.mark.usefixtures("shallow")


def _file(tmp_path, name="ViT_Ti16", change=None, **options):
    options = (
        {"image_size": 32, "classes": 5, **options}
        if name in VIT_VARIANTS
        else {"classes": 5, **options}
    )
    arrays = layouts.to_published(checkpoint((VIT_VARIANTS | RESNET_VARIANTS)[name], **options))
    if change is not None:
        change(arrays)
    path = tmp_path / f"{name}.npz"
    np.savez(path, **arrays)
    return path


def test_an_option_comes_before_what_a_file_says(tmp_path):
    options = {"input_shape": (32, 32, 3), "classes": 5}
    stored = {"gelu": "tanh", "norm_epsilon": 1e-3}
    model = keras_vit.ViT_Ti16(weights=None, **options, **stored)
    model.get_layer("predictions").kernel.assign(np.ones((192, 5)))
    keras_vit.save_checkpoint(model, tmp_path / "model.npz")
    for given in ({}, {"gelu": "exact"}, {"norm_epsilon": 1e-5}):
        block = next(
            layer
            for layer in keras_vit.ViT_Ti16(
                weights=tmp_path / "model.npz", **options, **given
            ).layers
            if hasattr(layer, "gelu")
        )
        expected = stored | given
        assert (block.gelu, block.norm_epsilon) == (expected["gelu"], expected["norm_epsilon"])


def test_the_last_layer_is_a_dense_called_predictions():
    model = keras_vit.ViT_Ti16(weights=None, input_shape=(32, 32, 3))
    assert model.name == "vit_ti16"
    assert isinstance(model.layers[-1], keras.layers.Dense)
    assert model.layers[-1].name == "predictions"
    assert model.layers[-1].activation.__name__ == "softmax"
    assert keras_vit.ViT_Ti16(weights=None, name="mine", classifier_activation=None).name == "mine"


@pytest.mark.parametrize(
    ("name", "channels"),
    [
        ("ViT_Ti16", 1),
        ("ViT_Ti16", 3),
        ("ViT_Ti16", 4),
        pytest.param("R_ViT_Ti16", 4, marks=pytest.mark.once),
        pytest.param("BiT_R50x1", 1, marks=pytest.mark.once),
    ],
)
def test_without_the_top_any_size_and_any_channels(name, channels):
    model = getattr(keras_vit, name)(
        weights=None, include_top=False, input_shape=(None, None, channels)
    )
    assert model.output_shape == ((None, None, 192) if "ViT" in name else (None, None, None, 2048))
    small = model(np.zeros((1, 32, 64, channels), "float32"))
    assert (
        small.shape
        == {"ViT_Ti16": (1, 9, 192), "R_ViT_Ti16": (1, 3, 192), "BiT_R50x1": (1, 1, 2, 2048)}[name]
    )


@pytest.mark.once
@pytest.mark.parametrize("pooling", ["avg", "max", "token"])
def test_pooling_gives_one_vector(pooling):
    model = keras_vit.ViT_Ti16(weights=None, include_top=False, pooling=pooling)
    assert model.input_shape == (None, None, None, 3)
    assert model.output_shape == (None, 192)


@pytest.mark.once
def test_the_defaults_of_the_input_shape():
    assert keras_vit.ViT_Ti16(weights=None).input_shape == (None, 224, 224, 3)
    assert keras_vit.ViT_Ti16(weights=None, include_top=False).input_shape == (None, None, None, 3)


@pytest.mark.once
@pytest.mark.parametrize("name", ["AxialViT_B16", "AxialResNet50"])
def test_an_axial_model_has_one_size(name, small_axial):
    build = small_axial[name]
    assert build(weights=None).input_shape == (None, 224, 224, 3)
    trunk = build(weights=None, include_top=False)
    assert trunk.input_shape == (None, 224, 224, 3)  # where others leave it open
    assert trunk.output_shape == ((None, 196, 48) if "ViT" in name else (None, 28, 28, 512))
    assert build(
        weights=None, include_top=False, pooling="avg", input_shape=(64, 96, 1)
    ).input_shape[1:] == (64, 96, 1)
    for shape in ((None, None, 3), (64, None, 3)):
        with pytest.raises(ValueError, match="fixed image size"):
            build(weights=None, include_top=False, input_shape=shape)


def test_an_axial_vit_takes_the_options_of_others(small_axial):
    build = small_axial["AxialViT_B16"]
    options = {
        "include_preprocessing": True,
        "representation_size": 7,
        "head_bias": -1.0,
        "dropout_rate": 0.1,
    }
    options |= {
        "attention_dropout_rate": 0.1,
        "stochastic_depth_rate": 0.1,
        "gelu": "exact",
        "norm_epsilon": 1e-5,
    }
    model = build(weights=None, input_shape=(32, 48, 3), classes=5, classifier="map", **options)
    block = model.get_layer("encoderblock_1")
    assert (block.gelu, block.norm_epsilon, block.drop_path_rate, block.dropout_rate) == (
        "exact",
        1e-5,
        0.1,
        0.1,
    )
    images = np.random.default_rng(0).integers(0, 256, (2, 32, 48, 3)).astype("float32")
    np.testing.assert_allclose(model.predict(images, verbose=0), 0.2, rtol=1e-5)  # a head of zeros
    with pytest.raises(ValueError, match="AxialViT_B16 attends along rows and columns"):
        build(weights=None, input_shape=(32, 48, 3), classifier="token")
    with pytest.raises(ValueError, match="must be a multiple of 16"):
        build(weights=None, input_shape=(32, 40, 3))


def test_options_of_a_vit_reach_its_layers(tiny_vit):
    build = keras_vit.application(tiny_vit)
    options = {"attention_dropout_rate": 0.2, "dropout_rate": 0.1, "stochastic_depth_rate": 0.3}
    model = build(weights=None, input_shape=(32, 32, 3), classes=5, head_bias=-3.0, **options)
    block = model.get_layer("encoderblock_1")
    rates = (block.attention_dropout_rate, block.dropout_rate, block.drop_path_rate)
    assert rates == (0.2, 0.1, 0.3)
    bias = keras.ops.convert_to_numpy(model.get_layer("predictions").bias)
    np.testing.assert_array_equal(bias, np.full(5, -3.0, "float32"))
    model = build(weights=None, input_shape=(32, 32, 3), query_chunk=4)
    assert model.get_layer("encoderblock_0").query_chunk == 4


def test_options_of_a_resnet_reach_its_layers(tiny_resnet):
    build = keras_vit.application(tiny_resnet(RESNET_VARIANTS["BiT_R50x1"]))
    options = {"head_bias": -3.0, "pool_padding": "zeros"}
    model = build(weights=None, input_shape=(32, 32, 3), classes=5, **options)
    bias = keras.ops.convert_to_numpy(model.get_layer("predictions").bias)
    np.testing.assert_array_equal(bias, np.full(5, -3.0, "float32"))
    assert model.get_layer("pool_root").get_config()["padding"] == "zeros"


@pytest.mark.once
@pytest.mark.parametrize("name", ["AxialViT_B16", "AxialResNet50"])
def test_axial_models_have_no_published_weights(name):
    assert keras_vit.list_weights(name) == []
    with pytest.raises(
        ValueError,
        match=f"Unknown weights for {name}: 'imagenet'.*No file of this model was published",
    ):
        getattr(keras_vit, name)()


@pytest.mark.once
def test_an_axial_vit_can_be_given_a_new_head(small_axial):
    model = small_axial["AxialViT_B16"](weights=None, input_shape=(32, 32, 3))
    assert keras_vit.replace_head(model, classes=7).output_shape == (None, 7)


@pytest.fixture
def small_axial():
    """The front doors of the axial rows in little."""
    vit = replace(VIT_VARIANTS["AxialViT_B16"], width=48, depth=2, num_heads=3, mlp_dim=64)
    resnet = replace(RESNET_VARIANTS["AxialResNet50"], units=(1, 1))
    return {row.name: keras_vit.application(row) for row in (vit, resnet)}


def test_an_input_tensor_after_other_layers(tmp_path):
    images = keras.Input((32, 32, 1))
    tensor = keras.layers.Conv2D(3, 1, name="to_rgb")(images)
    model = keras_vit.ViT_Ti16(weights=_file(tmp_path), input_tensor=tensor, classes=5)
    assert model.input_shape == (None, 32, 32, 1)
    expected = checkpoint(VIT_VARIANTS["ViT_Ti16"], image_size=32, classes=5)["head/kernel"]
    np.testing.assert_array_equal(
        keras.ops.convert_to_numpy(model.get_layer("predictions").kernel), expected
    )
    alone = keras_vit.ViT_Ti16(weights=_file(tmp_path), input_shape=(32, 32, 3), classes=5)
    x = np.random.default_rng(0).standard_normal((2, 32, 32, 1)).astype("float32")
    between = keras.Model(images, tensor)(x)
    np.testing.assert_allclose(
        keras.ops.convert_to_numpy(model(x)), keras.ops.convert_to_numpy(alone(between)), atol=1e-5
    )


def test_preprocessing_inside_equals_preprocessing_outside(tmp_path):
    path = _file(tmp_path)
    outside = keras_vit.ViT_Ti16(weights=path, input_shape=(32, 32, 3), classes=5)
    inside = keras_vit.ViT_Ti16(
        weights=path, input_shape=(32, 32, 3), classes=5, include_preprocessing=True
    )
    pixels = np.random.default_rng(0).integers(0, 256, (2, 32, 32, 3)).astype("float32")
    scaled = keras_vit.preprocess_input(pixels.copy())
    inside.save(tmp_path / "inside.keras")
    inside = keras.saving.load_model(tmp_path / "inside.keras")
    np.testing.assert_allclose(
        keras.ops.convert_to_numpy(inside(pixels)),
        keras.ops.convert_to_numpy(outside(scaled)),
        atol=1e-5,
    )


@pytest.mark.once
def test_an_input_shape_must_be_that_of_the_input_tensor(tiny_vit):
    build = keras_vit.application(tiny_vit)
    options = {"weights": None, "input_tensor": keras.Input((32, 48, 3))}
    assert build(**options, input_shape=(32, 48, 3)).input_shape == (None, 32, 48, 3)
    with pytest.raises(ValueError, match=r"agree with `input_shape`.*input_shape=\(48, 32, 3\)"):
        build(**options, input_shape=(48, 32, 3))


@pytest.mark.once
@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"weights": "imagnet"},
            "should be either `None`.*imagenet.*path.*weights=imagnet.*Did you mean imagenet",
        ),
        ({"weights": "no/such/file.npz"}, "no such file"),
        (
            {"weights": "imagenet", "classes": 10},
            'using `weights="imagenet"` with.*should be 1000.*classes=10',
        ),
        ({"weights": "imagenet", "classes": 10}, r"replace_head\(model, 10\)"),
        ({"weights": "augreg_in21k"}, "should be 21843.*Received classes=1000"),
        (
            {"weights": "imagenet21k", "classes": 21843},
            'all zeros.*include_top=False.*"augreg_in21k"',
        ),
        (
            {"weights": "imagenet", "input_shape": (3, 224, 224)},
            r"with channels last.*Use \(224, 224, 3\)",
        ),
        (
            {"weights": None, "input_shape": (1, None, None)},
            r"with channels last.*Use \(None, None, 1\)",
        ),
        (
            {"weights": None, "input_tensor": np.zeros((1, 32, 32, 3))},
            r"ndarray of shape \(1, 32, 32, 3\)",
        ),
        (
            {"weights": None, "input_tensor": "images"},
            "must be a symbolic Keras tensor.*Received: str",
        ),
        (
            {"weights": "imagenet", "classifier_activation": "relu"},
            "Only `None` and `softmax` activations",
        ),
        ({"weights": None, "input_shape": (224, 224)}, "tuple of three integers"),
        ({"weights": None, "input_shape": 224}, r"such as \(224, 224, 3\)\. Received: .*=224$"),
        (
            {"weights": None, "input_shape": (123, 123, 3)},
            r"multiple of 16.*\(112, 112\) or \(128, 128\).*pad=True",
        ),
        ({"weights": None, "input_shape": (32, -1, 3)}, "positive integers"),
        ({"weights": None, "input_shape": (32, 32, None)}, "channels must be known"),
        ({"weights": None, "classifier": "cls"}, "`classifier` must be one of"),
        ({"weights": None, "interpolation": "nearest"}, "`interpolation` must be one of"),
        ({"weights": None, "pooling": "mean", "include_top": False}, "`pooling` must be one of"),
        (
            {"weights": None, "pooling": "map", "include_top": False, "classifier": "nope"},
            "`classifier`",
        ),
    ],
)
def test_arguments_are_checked_before_anything_is_loaded(options, message):
    with pytest.raises(ValueError, match=f"(?s){message}"):
        keras_vit.ViT_B16(**options)


@pytest.mark.once
def test_channels_first_is_refused():
    keras.config.set_image_data_format("channels_first")
    try:
        with pytest.raises(ValueError, match="channels_last"):
            keras_vit.ViT_Ti16(weights=None)
    finally:
        keras.config.set_image_data_format("channels_last")


@pytest.mark.once
def test_a_model_without_published_files_says_so():
    with pytest.raises(ValueError, match="(?s)No file of this model was published"):
        keras_vit.R50_ViT_L16()
    assert keras_vit.list_weights("R50_ViT_L16") == []


def test_weights_fit_every_image_size(tmp_path):
    path = _file(tmp_path)
    for shape in ((32, 32, 3), (48, 64, 3), (None, None, 3)):
        model = keras_vit.ViT_Ti16(weights=path, input_shape=shape, classes=5)
        side = tuple(size or 32 for size in shape[:2])
        assert model(np.zeros((1, *side, 3), "float32")).shape == (1, 5)


def test_open_sizes_keep_the_table_of_the_checkpoint(tmp_path):
    """The table is not resampled on the way in: at each call it is resampled once, from the
    original.
    """
    path = _file(tmp_path, image_size=64)
    open_ = keras_vit.ViT_Ti16(weights=path, input_shape=(None, None, 3), classes=5)
    assert open_.get_layer("posembed_input").grid == (4, 4)
    for size in (32, 64, 96):
        fixed = keras_vit.ViT_Ti16(weights=path, input_shape=(size, size, 3), classes=5)
        x = np.random.default_rng(0).standard_normal((1, size, size, 3)).astype("float32")
        np.testing.assert_allclose(
            keras.ops.convert_to_numpy(open_(x)), keras.ops.convert_to_numpy(fixed(x)), atol=1e-5
        )


@pytest.mark.parametrize("size", [(16, 64), (None, None)])
def test_a_table_of_a_rectangle_has_the_grid_that_the_user_states(size, tiny_vit, tmp_path):
    """Published files do not contain it, and 16 positions could be those of a square."""
    arrays = layouts.to_published(checkpoint(tiny_vit, image_size=(16, 64), classes=5))
    np.savez(tmp_path / "file.npz", **arrays)
    build = keras_vit.application(tiny_vit)
    model = build(
        weights=tmp_path / "file.npz", classes=5, input_shape=(*size, 3), checkpoint_grid=(2, 8)
    )
    layer = model.get_layer("posembed_input")
    assert layer.grid == (2, 8)
    np.testing.assert_array_equal(
        keras.ops.convert_to_numpy(layer.pos_embedding),
        arrays["Transformer/posembed_input/pos_embedding"],
    )


@pytest.mark.once
def test_a_norm_after_the_pooling_is_left_out_with_the_pooling(tiny_vit, tmp_path):
    row = replace(tiny_vit, classifier="gap", norm_after_pooling=True)
    build = keras_vit.application(row)
    model = build(weights=None, input_shape=(32, 32, 3), classes=5, head_bias=1.0)
    keras_vit.save_checkpoint(model, tmp_path / "file.npz")
    tokens = build(weights=tmp_path / "file.npz", include_top=False, input_shape=(32, 32, 3))
    assert tokens.output_shape == (None, 16, 16)
    images = np.random.default_rng(0).uniform(-1, 1, (1, 32, 32, 3)).astype("float32")
    last = keras.Model(model.input, model.get_layer("encoderblock_1").output)
    np.testing.assert_array_equal(last(images), tokens(images))


def test_a_tanh_layer_of_the_checkpoint_is_built(tmp_path):
    path = _file(tmp_path, representation_size=7)
    model = keras_vit.ViT_Ti16(weights=path, input_shape=(32, 32, 3), classes=5)
    assert model.get_layer("pre_logits").units == 7
    features = keras_vit.ViT_Ti16(
        weights=path, include_top=False, pooling="token", input_shape=(32, 32, 3)
    )
    assert features.output_shape == (None, 192)
    after_tanh = keras_vit.ViT_Ti16(
        weights=path,
        include_top=False,
        pooling="token",
        input_shape=(32, 32, 3),
        representation_size=7,
    )
    x = np.random.default_rng(0).standard_normal((2, 32, 32, 3)).astype("float32")
    expected = keras.Model(model.input, model.get_layer("pre_logits").output)(x)
    np.testing.assert_allclose(
        keras.ops.convert_to_numpy(after_tanh(x)), keras.ops.convert_to_numpy(expected), atol=1e-5
    )


@pytest.mark.once
def test_a_tanh_layer_that_the_checkpoint_lacks_is_not_left_random(tmp_path):
    with pytest.raises(ValueError, match="missing from the checkpoint:\n  pre_logits/bias"):
        keras_vit.ViT_Ti16(
            weights=_file(tmp_path),
            include_top=False,
            pooling="token",
            input_shape=(32, 32, 3),
            representation_size=7,
        )


@pytest.mark.parametrize("classifier", ["gap", "map"])
def test_other_classifiers_load_their_own_files(classifier, tmp_path):
    path = _file(tmp_path, classifier=classifier)
    options = {"weights": path, "input_shape": (32, 32, 3), "classes": 5}
    models = [keras_vit.ViT_Ti16(**options, classifier=classifier), keras_vit.ViT_Ti16(**options)]
    for model in models:  # the second one reads what the head of the file reads
        assert len(model.weights) == len(np.load(path).files)
    photo = np.random.default_rng(0).uniform(-1, 1, (1, 32, 32, 3)).astype("float32")
    np.testing.assert_array_equal(*(keras.ops.convert_to_numpy(model(photo)) for model in models))
    with pytest.raises(ValueError, match="(?s)class_token/cls.*classifier="):
        keras_vit.ViT_Ti16(**options | {"include_top": False, "pooling": "token"})


def test_attention_pooling_without_the_top_keeps_its_weights(tmp_path):
    path = _file(tmp_path, classifier="map")
    options = {
        "weights": path,
        "include_top": False,
        "input_shape": (32, 32, 3),
        "classifier": "map",
    }
    tokens = keras_vit.ViT_Ti16(**options)
    pooled = keras_vit.ViT_Ti16(**options, pooling="map")
    assert tokens.output_shape == (None, 4, 192)
    probe = np.load(path)["MAPHead_0/probe"]
    np.testing.assert_array_equal(
        keras.ops.convert_to_numpy(pooled.get_layer("map_head").probe), probe
    )


@pytest.mark.once
def test_a_head_of_zeros_is_refused(tmp_path):
    path = _file(
        tmp_path,
        change=lambda arrays: arrays.update({"head/kernel": np.zeros((192, 5), "float32")}),
    )
    with pytest.raises(ValueError, match="(?s)all zeros.*include_top=False"):
        keras_vit.ViT_Ti16(weights=path, input_shape=(32, 32, 3), classes=5)
    assert keras_vit.ViT_Ti16(
        weights=path, include_top=False, input_shape=(32, 32, 3)
    ).output_shape == (None, 5, 192)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("ViT_S16", {}, "embedding/kernel: the model needs .*384.*the checkpoint has .*192"),
        ("R_ViT_Ti16", {}, "conv_root/kernel"),
        ("ViT_Ti16", {"classes": 1000}, "classes=5"),
        pytest.param("BiT_R50x1", {}, "does not match the model", marks=pytest.mark.once),
    ],
)
def test_a_file_of_another_model_is_an_error_that_lists_everything(
    name, options, message, tmp_path
):
    options = {"classes": 5, "input_shape": (32, 32, 3), **options}
    with pytest.raises(ValueError, match=f"(?s)nothing was loaded.*{message}|{message}.*"):
        getattr(keras_vit, name)(weights=_file(tmp_path), **options)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (lambda whole: whole[: len(whole) // 2], "truncated"),
        (lambda whole: b"", "empty"),
        (lambda whole: b"<!DOCTYPE html><html>not found</html>", "web page"),
        (lambda whole: b"\x89HDF\r\n\x1a\n" + bytes(100), "as a Keras weights file"),
    ],
)
def test_a_damaged_file_is_an_error_that_names_it(content, message, tmp_path):
    path = _file(tmp_path)
    path.write_bytes(content(path.read_bytes()))
    with pytest.raises(ValueError, match=f"ViT_Ti16.npz.*{message}"):
        keras_vit.ViT_Ti16(weights=path, input_shape=(32, 32, 3), classes=5)


@pytest.mark.once
def test_pickled_objects_are_refused_and_never_unpickled(tmp_path):
    class Bomb:
        def __reduce__(self):
            return (pytest.fail, ("unpickled",))

    path = tmp_path / "pickled.npz"
    np.savez(path, bomb=np.array([Bomb()], dtype=object))
    with pytest.raises(ValueError, match="(?i)pickle"):
        keras_vit.ViT_Ti16(weights=path, input_shape=(32, 32, 3), classes=5)


@pytest.mark.once
def test_weights_that_are_not_finite_are_refused(tmp_path):
    def poison(arrays):
        arrays["Transformer/encoder_norm/scale"][3] = np.nan

    with pytest.raises(ValueError, match="(?s)encoder_norm/scale"):
        keras_vit.ViT_Ti16(
            weights=_file(tmp_path, change=poison), input_shape=(32, 32, 3), classes=5
        )


@pytest.mark.once
def test_an_offline_machine_is_told_which_file_to_put_where(monkeypatch):
    def refuse(*_args, **_kwargs):
        raise OSError("no route")

    monkeypatch.setattr("socket.getaddrinfo", refuse)
    with pytest.raises(OSError, match=r"(?s)augreg/B_16-i21k.*KERAS_VIT_WEIGHTS"):
        keras_vit.ViT_B16()


@pytest.mark.parametrize("shape", [(1, 32, 32), (1, 32, 32, 4), (1, 48, 32, 3)])
def test_images_of_the_wrong_shape_are_errors(shape):
    model = keras_vit.ViT_Ti16(weights=None, input_shape=(32, 32, 3))
    with pytest.raises(ValueError, match="(?s)incompatible|expected|shape"):
        model.predict(np.zeros(shape), verbose=0)


def test_images_of_the_wrong_type_are_errors():
    model = keras_vit.ViT_Ti16(weights=None, input_shape=(32, 32, 3))
    with pytest.raises((ValueError, TypeError)):
        model(np.full((1, 32, 32, 3), "pixel"))


def test_replacing_the_head_keeps_everything_else(tmp_path):
    model = keras_vit.ViT_Ti16(
        weights=_file(tmp_path, representation_size=7), input_shape=(32, 32, 3), classes=5
    )
    new = keras_vit.replace_head(model, classes=3, classifier_activation=None)
    assert new.output_shape == (None, 3)
    assert "pre_logits" not in {layer.name for layer in new.layers}
    before, after = state(model.layers), state(new.layers)
    for name in after.keys() - {"predictions/kernel", "predictions/bias"}:
        np.testing.assert_array_equal(after[name], before[name])
    assert not after["predictions/kernel"].any()
    with pytest.raises(ValueError, match="no layer `predictions`"):
        keras_vit.replace_head(keras_vit.ViT_Ti16(weights=None, include_top=False), 3)


def test_analyses_need_no_tensorflow():
    """On JAX the tests cannot import it, so this one fails if an analysis does."""
    assert importlib.import_module("keras_vit.analyze").attention_rollout


def test_weights_of_rgb_give_for_a_gray_image_what_they_gave_for_its_three_copies(tmp_path):
    gray = np.random.default_rng(0).uniform(-1, 1, (2, 32, 32, 1)).astype("float32")
    options = {"weights": _file(tmp_path), "classes": 5}
    expected = keras_vit.ViT_Ti16(**options, input_shape=(32, 32, 3)).predict_on_batch(
        np.repeat(gray, 3, axis=-1)
    )
    model = keras_vit.ViT_Ti16(**options, input_shape=(32, 32, 1))
    np.testing.assert_allclose(model.predict_on_batch(gray), expected, atol=1e-5)
    # its size and its channels come back with it
    keras_vit.save_checkpoint(model, tmp_path / "gray.npz")
    again = keras_vit.ViT_Ti16(weights=tmp_path / "gray.npz", classes=5)
    np.testing.assert_array_equal(again.predict_on_batch(gray), model.predict_on_batch(gray))
    with pytest.raises(
        ValueError, match=r"for images of 1 channels.*input_shape=\(height, width, 1\)"
    ):
        keras_vit.ViT_Ti16(weights=tmp_path / "gray.npz", classes=5, input_shape=(32, 32, 3))


@pytest.mark.once
@pytest.mark.parametrize("name", ["BiT_R50x1", "R_ViT_Ti16"])
def test_other_channels_go_to_the_convolution_that_sees_the_image(name, tmp_path, shallow):
    build = getattr(keras_vit, name)
    rgb = build(weights=None, input_shape=(32, 32, 3), classes=5)
    rgb.get_layer("predictions").kernel.assign(np.ones(rgb.get_layer("predictions").kernel.shape))
    keras_vit.save_checkpoint(rgb, tmp_path / "rgb.npz")
    model = build(weights=tmp_path / "rgb.npz", input_shape=(32, 32, 2), classes=5)
    old, new = (
        keras.ops.convert_to_numpy(each.get_layer("conv_root").kernel) for each in (rgb, model)
    )
    np.testing.assert_allclose(new, old[:, :, :2] * 1.5, rtol=1e-6)
    if name == "R_ViT_Ti16":
        kernels = [
            keras.ops.convert_to_numpy(each.get_layer("embedding").kernel) for each in (rgb, model)
        ]
        np.testing.assert_array_equal(*kernels)


def test_a_padded_image_is_that_of_the_padded_size(tiny_vit, tmp_path):
    images = np.random.default_rng(0).uniform(-1, 1, (2, 30, 20, 3)).astype("float32")
    whole = np.zeros((2, 32, 24, 3), "float32")
    whole[:, :30, :20] = images
    build = keras_vit.application(tiny_vit)
    model = build(weights=None, input_shape=(32, 24, 3), classes=5)
    head = model.get_layer("predictions")
    head.kernel.assign(np.random.default_rng(1).standard_normal(head.kernel.shape))
    keras_vit.save_checkpoint(model, tmp_path / "whole.npz")
    expected = model.predict_on_batch(whole)
    options = {"weights": tmp_path / "whole.npz", "classes": 5, "pad": True}
    fixed = build(**options, input_shape=(30, 20, 3))
    np.testing.assert_allclose(fixed.predict_on_batch(images), expected, atol=1e-6)
    opened = build(**options, input_shape=(None, None, 3))
    np.testing.assert_allclose(opened.predict_on_batch(images), expected, atol=1e-6)
    opened.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    np.testing.assert_allclose(loaded.predict_on_batch(images), expected, atol=1e-6)
    # zeros are gray, not black
    levels = build(**options, input_shape=(30, 20, 3), include_preprocessing=True)
    np.testing.assert_allclose(levels.predict_on_batch((images + 1) * 127.5), expected, atol=1e-5)
    keras_vit.save_checkpoint(fixed, tmp_path / "padded.npz")
    again = build(weights=tmp_path / "padded.npz", classes=5, pad=True)
    assert again.input_shape == (None, 30, 20, 3)


@pytest.mark.once
def test_a_hybrid_pads_its_images_where_its_feature_map_cannot_be_cut():
    stem = replace(VIT_VARIANTS["R_ViT_Ti16"].stem, units=(1,))
    row = replace(VIT_VARIANTS["R_ViT_Ti16"], name="small", depth=1, stem=stem, patch_size=2)
    build = keras_vit.application(row)
    padded, whole = (
        build(
            weights=None,
            input_shape=(*size, 3),
            include_top=False,
            pooling="token",
            pad=size == (17, 24),
        )
        for size in ((17, 24), (21, 24))
    )
    whole.set_weights(padded.get_weights())
    images = np.random.default_rng(0).uniform(-1, 1, (2, 17, 24, 3)).astype("float32")
    expected = whole.predict_on_batch(np.pad(images, ((0, 0), (0, 4), (0, 0), (0, 0))))
    np.testing.assert_allclose(padded.predict_on_batch(images), expected, atol=1e-5)


@pytest.mark.once
def test_a_head_that_cannot_be_replaced_is_an_error_that_says_what_to_do(tiny_vit):
    with pytest.raises(
        ValueError, match=r"takes a model. Received: 'ViT_B16'. Build it first.*ViT_B16\(weights"
    ):
        keras_vit.replace_head("ViT_B16", 7)
    build = keras_vit.application(tiny_vit)
    headless = build(weights=None, input_shape=(32, 32, 3), include_top=False, pooling="token")
    with pytest.raises(ValueError, match="no layer `predictions`.*include_top=False") as error:
        keras_vit.replace_head(headless, 7)
    advice = str(error.value).split("`")[-2]
    assert eval(advice, {"keras": keras, "model": headless}).output_shape == (None, 7)
    with pytest.raises(ValueError, match="number of classes, at least 1. Received: 0"):
        keras_vit.replace_head(build(weights=None, input_shape=(32, 32, 3)), 0)


def test_a_row_whose_patches_do_not_tile_its_own_image_size_is_refused(tiny_vit):
    row = replace(tiny_vit, patch_size=6)
    with pytest.raises(ValueError, match=r"row tiny has image_size=224.*Set `image_size`.*222"):
        keras_vit.application(row)
    model = keras_vit.application(replace(row, image_size=48))(weights=None, classes=3)
    assert model.input_shape == (None, 48, 48, 3)
