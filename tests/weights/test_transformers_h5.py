"""Files of transformers 4 on TensorFlow, written by it: `tests/golden/transformers_h5`."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import keras
import numpy as np
import pytest
from PIL import Image

import keras_vit
from keras_vit.analyze import attention_maps
from keras_vit.variants import FAMILY_VARIANTS, VIT_VARIANTS
from keras_vit.weights import files, model_file, transformers_h5
from keras_vit.weights.restore import state

h5py = pytest.importorskip("h5py")

GOLDEN = Path(__file__).parents[1] / "golden" / "transformers_h5"
ROW = replace(
    VIT_VARIANTS["ViT_Ti16"], name="small", patch_size=8, width=16, depth=2, num_heads=2, mlp_dim=24
)
DEIT = replace(ROW, distilled=True)
SIZES = ("patch_size", "width", "depth", "num_heads", "mlp_dim")
CLIP = replace(FAMILY_VARIANTS["CLIP_B16"], **{name: getattr(ROW, name) for name in SIZES})
TOLERANCE = 1e-5
CLASSIFIERS = ("vit_classifier", "vit_in_shards", "vit_safetensors")
IN_ONE_FILE = (
    "vit",
    "vit_classifier",
    "mae",
    "deit",
    "deit_classifier",
    "deit_distilled",
    "clip",
    "clip_with_text",
)


def images(height=32, width=32):
    return np.random.default_rng(0).uniform(-1, 1, (2, height, width, 3)).astype("float32")


def recorded(name):
    with np.load(GOLDEN / "outputs.npz") as outputs:
        return outputs[name]


def build(name, row=ROW, **options):
    return keras_vit.application(row)(weights=GOLDEN / name, **options)


def hidden_states(model, first="dropout"):
    layers = (first, "encoderblock_0", "encoderblock_1")
    return keras.Model(model.input, [model.get_layer(name).output for name in layers])


def assert_close(ours, name):
    expected = recorded(name)
    assert ours.shape == expected.shape and ours.dtype == expected.dtype
    np.testing.assert_allclose(ours, expected, atol=TOLERANCE)


# --- what the models compute
# ----------------------------------------------------------------------------------------


def test_the_tokens_of_tfvitmodel():
    model = build("vit", include_top=False, input_shape=(32, 32, 3))
    assert_close(model.predict(images(), verbose=0), "vit/last_hidden_state")


def test_the_pooler_output_of_tfvitmodel():
    model = build("vit", include_top=False, pooling="token", representation_size=16)
    assert_close(model.predict(images(), verbose=0), "vit/pooler_output")


def test_the_hidden_states_of_tfvitmodel():
    states = hidden_states(build("vit", include_top=False, input_shape=(32, 32, 3)))
    assert_close(np.stack(states.predict(images(), verbose=0)), "vit/hidden_states")


def test_the_attentions_of_tfvitmodel():
    model = build("vit", include_top=False, input_shape=(32, 32, 3))
    assert_close(attention_maps(model, images()), "vit/attentions")


def test_tfdeitmodel():
    model = build("deit", DEIT, include_top=False, input_shape=(32, 32, 3))
    assert_close(model.predict(images(), verbose=0), "deit/last_hidden_state")
    assert_close(attention_maps(model, images()), "deit/attentions")
    states = hidden_states(model).predict(images(), verbose=0)
    assert_close(np.stack(states), "deit/hidden_states")
    pooler = build("deit", DEIT, include_top=False, pooling="token", representation_size=16)
    assert_close(pooler.predict(images(), verbose=0), "deit/pooler_output")


def test_tfdeitforimageclassification_has_one_head_on_two_tokens():
    model = build("deit_classifier", DEIT, classes=3, classifier_activation=None)
    assert_close(model.predict(images(), verbose=0), "deit_classifier/logits")
    with pytest.raises(ValueError, match="No such layer: predictions_distilled"):
        model.get_layer("predictions_distilled")


def test_tfdeitforimageclassificationwithteacher_has_two_heads():
    model = build("deit_distilled", DEIT, classes=3, classifier_activation=None)
    heads = ("mean_of_heads", "predictions", "predictions_distilled")
    outputs = keras.Model(model.input, [model.get_layer(name).output for name in heads])
    names = ("logits", "cls_logits", "distillation_logits")
    for name, found in zip(names, outputs.predict(images(), verbose=0), strict=True):
        assert_close(found, f"deit_distilled/{name}")
    assert_close(model.predict(images(), verbose=0), "deit_distilled/logits")


def test_the_encoder_of_tfvitmaeforpretraining():
    model = build("mae", include_top=False, input_shape=(32, 32, 3))
    assert_close(model.predict(images(), verbose=0), "mae/last_hidden_state")
    assert_close(attention_maps(model, images()), "mae/attentions")


def test_tfclipvisionmodel():
    """Its pixels are normalized already, ours inside the model."""
    row = replace(CLIP, pixel_mean=(0.5, 0.5, 0.5), pixel_std=(0.5, 0.5, 0.5))
    model = build("clip", row, include_top=False, pooling="token", input_shape=(32, 32, 3))
    assert_close(model.predict(images(), verbose=0), "clip/pooler_output")
    assert_close(attention_maps(model, images()), "clip/attentions")
    states = hidden_states(model, "norm_before_blocks").predict(images(), verbose=0)
    assert_close(np.stack(states), "clip/hidden_states")
    assert_close(states[-1], "clip/last_hidden_state")


def test_the_image_embeddings_of_tfclipmodel():
    row = replace(CLIP, projection=6, pixel_mean=(0.5, 0.5, 0.5), pixel_std=(0.5, 0.5, 0.5))
    model = build("clip_with_text", row, input_shape=(32, 32, 3))
    assert_close(model.predict(images(), verbose=0), "clip_with_text/image_embeds")


@pytest.mark.parametrize("name", CLASSIFIERS)
def test_the_logits_of_tfvitforimageclassification(name):
    model = build(name, classes=3, classifier_activation=None)
    assert model.input_shape == (None, 32, 32, 3)
    assert_close(model.predict(images(), verbose=0), f"{name}/logits")


def test_tokens_of_larger_images():
    """TensorFlow rounds the weights of its resizing to steps of 1 / 1024."""
    differences = {}
    for interpolation in ("bicubic_antialias", "bilinear"):
        model = build(
            "vit", include_top=False, input_shape=(48, 80, 3), interpolation=interpolation
        )
        found = model.predict(images(48, 80), verbose=0)
        differences[interpolation] = np.abs(found - recorded("vit/larger_last_hidden_state")).max()
    assert differences["bicubic_antialias"] < 1e-3 and differences["bilinear"] > 0.1


@pytest.mark.once
def test_pixels_of_vitimageprocessor(tmp_path):
    photo = np.random.default_rng(0).integers(0, 256, (96, 140, 3), dtype="uint8")
    Image.fromarray(photo).save(tmp_path / "photo.png")
    image = keras.utils.load_img(
        tmp_path / "photo.png", target_size=(32, 32), interpolation="bilinear"
    )
    pixels = keras_vit.preprocess_input(keras.utils.img_to_array(image)[None])
    expected = recorded("processor/pixel_values").transpose(0, 2, 3, 1)
    np.testing.assert_allclose(pixels, expected, rtol=0, atol=1e-7)


def test_other_means_and_deviations_are_read_and_normalized_by_the_model(tmp_path):
    mean, std = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]
    folder = copy("vit_classifier", tmp_path).parent
    processor = {"image_mean": mean, "image_std": std, "do_normalize": True}
    (folder / "preprocessor_config.json").write_text(json.dumps(processor))
    model = build(folder, classes=3, classifier_activation=None)
    # The model normalizes these pixels to the ones that transformers was given.
    pixels = (2 * (images() * std + mean) - 1).astype("float32")
    assert_close(model.predict(pixels, verbose=0), "vit_classifier/logits")


def test_epsilon_and_gelu_are_those_of_the_configuration():
    block = build("vit_classifier", classes=3).get_layer("encoderblock_0")
    assert (block.norm_epsilon, block.gelu) == (1e-3, "tanh")
    block = build("vit_in_shards", classes=3).get_layer("encoderblock_0")
    assert (block.norm_epsilon, block.gelu) == (1e-12, "exact")


def test_saving_keeps_every_bit(tmp_path):
    model = build("vit_classifier", classes=3)
    keras_vit.save_checkpoint(model, tmp_path)
    again = keras_vit.application(ROW)(weights=tmp_path, classes=3)
    for name, array in state(model.layers).items():
        np.testing.assert_array_equal(state(again.layers)[name], array, err_msg=name)


# --- names, shapes and numbers
# --------------------------------------------------------------------------------------


def numbers_of(path):
    """{path in the file: array} of all datasets, read with h5py alone."""
    found = {}
    with h5py.File(path) as file:
        file.visititems(
            lambda name, item: (
                found.__setitem__(name, item[()]) if isinstance(item, h5py.Dataset) else None
            )
        )
    return found


def load(path):
    return model_file.read(path, parameters=10_000)


def copy(name, folder):
    """The path of a copy of a golden file, with its configuration beside it."""
    shutil.copytree(GOLDEN / name, folder, dirs_exist_ok=True)
    return folder / "tf_model.h5"


@pytest.mark.once
@pytest.mark.parametrize("name", IN_ONE_FILE)
def test_every_array_is_read_bit_by_bit(name, tmp_path):
    (copy(name, tmp_path).parent / "config.json").unlink()
    arrays = files.read(tmp_path).arrays
    expected = numbers_of(GOLDEN / name / "tf_model.h5")
    assert len(arrays) == len(expected) > 30
    assert _sorted_numbers(arrays) == _sorted_numbers(expected)


def _sorted_numbers(arrays):
    """The bytes of each array with its numbers in order, so that axes do not matter."""
    return sorted(np.sort(x, axis=None).tobytes() for x in arrays.values())


@pytest.mark.once
@pytest.mark.parametrize(
    ("name", "theirs", "ours", "axes"),
    [
        ("vit", "vit/tf_vi_t_model/vit/embeddings/cls_token:0", "vit.embeddings.cls_token", None),
        (
            "vit",
            "vit/tf_vi_t_model/vit/embeddings/patch_embeddings/projection/kernel:0",
            "vit.embeddings.patch_embeddings.projection.weight",
            (3, 2, 0, 1),
        ),
        (
            "deit_distilled",
            "distillation_classifier/tf_dei_t_for_image_classification_with_teacher"
            "/distillation_classifier/kernel:0",
            "distillation_classifier.weight",
            (1, 0),
        ),
        (
            "deit",
            "deit/tf_dei_t_model/deit/encoder/layer_._1/layernorm_before/beta:0",
            "deit.encoder.layer.1.layernorm_before.bias",
            None,
        ),
        (
            "clip",
            "clip/tfclip_vision_model/clip/vision_model/embeddings/position_embedding/embeddings:0",
            "vision_model.embeddings.position_embedding.weight",
            None,
        ),
        (
            "clip",
            "clip/tfclip_vision_model/clip/vision_model/encoder/layers_._0/self_attn/q_proj/kernel:0",
            "vision_model.encoder.layers.0.self_attn.q_proj.weight",
            (1, 0),
        ),
        (
            "mae",
            "decoder/tf_vi_tmae_for_pre_training/decoder/decoder_layers.0/output/dense/kernel:0",
            "decoder.decoder_layers.0.output.dense.weight",
            (1, 0),
        ),
    ],
)
def test_names_and_shapes_are_those_of_pytorch(name, theirs, ours, axes, tmp_path):
    (copy(name, tmp_path).parent / "config.json").unlink()
    expected = numbers_of(tmp_path / "tf_model.h5")[theirs]
    found = files.read(tmp_path).arrays[ours]
    np.testing.assert_array_equal(found, expected if axes is None else expected.transpose(axes))


@pytest.mark.once
def test_files_in_shards_hold_the_same_as_one_file():
    shards, one = load(GOLDEN / "vit_in_shards"), load(GOLDEN / "vit_safetensors")
    assert shards.arrays.keys() == one.arrays.keys() and shards.metadata == one.metadata
    for name, array in one.arrays.items():
        np.testing.assert_array_equal(shards.arrays[name], array, err_msg=name)


@pytest.mark.once
def test_layers_that_were_built_without_their_model_are_read_too(tmp_path):
    path = copy("vit", tmp_path)
    with h5py.File(path, "r+") as file:
        file.move("vit/tf_vi_t_model/vit", "vit/vit")
    assert load(path).arrays.keys() == load(GOLDEN / "vit").arrays.keys()


@pytest.mark.once
def test_every_other_file_of_a_folder_goes_before_this_one(tmp_path):
    copy("vit", tmp_path)
    files.write_safetensors(tmp_path / "model.safetensors", {"a": np.ones(3, "float32")})
    assert files.find_file(tmp_path).name == "model.safetensors"
    (tmp_path / "model.safetensors").unlink()
    assert files.find_file(tmp_path).name == "tf_model.h5"
    assert files.detect_kind(tmp_path / "tf_model.h5") == "transformers_h5"


# --- files that are bad
# ----------------------------------------------------------------------------------------------

_PLACE = "vit/tf_vi_t_model/vit/layernorm"


def _replace(file, value, **options):
    del file[_PLACE]["gamma:0"]
    file[_PLACE].create_dataset("gamma:0", data=value, **options)


def _link(file, link):
    del file[_PLACE]["gamma:0"]
    file[_PLACE]["gamma:0"] = link


def _declare(file, shape, **options):
    del file[_PLACE]["gamma:0"]
    file[_PLACE].create_dataset("gamma:0", shape, "f4", **options)


def _nest(file, levels):
    group = file["vit"]
    for _ in range(levels):
        group = group.create_group("deeper")
    group["x"] = np.zeros(3)


def _double(file, levels):
    """Groups that each have two names: 2 ** levels paths to one array."""
    groups = [file["vit"].create_group(f"group{level}") for level in range(levels)]
    for outer, inner in zip(groups, groups[1:], strict=False):
        outer["left"] = outer["right"] = inner


BAD = {
    "text": (lambda file: _replace(file, [b"text"] * 16, dtype="S4"), "pickled objects"),
    "reference": (
        lambda file: _replace(file, file["vit"].ref, dtype=h5py.ref_dtype),
        "pickled objects",
    ),
    "complex": (lambda file: _replace(file, np.zeros(16, "complex64")), "not numbers"),
    "compound": (lambda file: _replace(file, np.zeros(16, [("a", "f4")])), "not numbers"),
    "integers": (lambda file: _replace(file, np.zeros(16, "i4")), "not floats"),
    "nan": (lambda file: _replace(file, np.full(16, np.nan, "f4")), "NaN"),
    "soft link": (lambda file: _link(file, h5py.SoftLink("/vit")), "stored in another place"),
    "external link": (
        lambda file: _link(file, h5py.ExternalLink("/etc/hostname", "/")),
        "stored in another place",
    ),
    "type": (lambda file: _link(file, np.dtype("f4")), "not an array"),
    "other file": (
        lambda file: _declare(file, (16,), external=[("/etc/hostname", 0, 64)]),
        "stored in another file",
    ),
    "nothing behind": (lambda file: _declare(file, (16,)), "too few for the shape"),
    "a terabyte": (lambda file: _declare(file, (2**38,)), "too few for the shape"),
    "a terabyte in pieces": (
        lambda file: _declare(file, (2**38,), chunks=(2**20,)),
        "arrays take 1,099,512 MB",
    ),
    "huge pieces": (
        lambda file: _declare(file, (2**30,), chunks=(2**30 - 1,), compression="gzip"),
        "too much memory",
    ),
    "loop": (
        lambda file: file[_PLACE].__setitem__("again", file["vit"]),
        "stored under another name",
    ),
    "one array twice": (
        lambda file: file[_PLACE].__setitem__("again:0", file[_PLACE]["gamma:0"]),
        "stored under another name",
    ),
    "billions of names": (lambda file: _double(file, 22), "stored under another name"),
    "depth": (lambda file: _nest(file, 50), "nested too deeply"),
    "two arrays of one name": (
        lambda file: file["vit"].__setitem__("other/vit/layernorm/gamma:0", np.ones(16, "f4")),
        "several arrays of one name",
    ),
}


@pytest.mark.once
@pytest.mark.parametrize("kind", BAD)
def test_what_transformers_would_not_write_is_refused_in_one_sentence(kind, tmp_path):
    change, message = BAD[kind]
    path = copy("vit", tmp_path)
    with h5py.File(path, "r+") as file:
        change(file)
    with pytest.raises(ValueError, match=rf"Cannot read '.*tf_model\.h5'.*{message}") as caught:
        load(path)
    assert "\n" not in str(caught.value)


@pytest.mark.once
def test_a_truncated_file_is_refused(tmp_path):
    path = tmp_path / "tf_model.h5"
    whole = (GOLDEN / "vit" / "tf_model.h5").read_bytes()
    for size in (9, 63, 64, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:size])
        with pytest.raises(ValueError, match="truncated"):
            load(path)


@pytest.mark.once
def test_a_model_without_all_its_arrays_is_refused(tmp_path):
    path = copy("vit_classifier", tmp_path)
    with h5py.File(path, "r+") as file:
        del file["vit/tf_vi_t_for_image_classification/vit/layernorm/gamma:0"]
    with pytest.raises(ValueError, match=r"1 missing from the checkpoint:\n  encoder_norm/gamma"):
        keras_vit.application(ROW)(weights=path, classes=3, input_shape=(32, 32, 3))


@pytest.mark.once
@pytest.mark.parametrize("attribute", ["layer_names", "layer_names0"])
def test_a_list_of_layers_may_be_spread_over_attributes(attribute, tmp_path):
    with h5py.File(tmp_path / "model.h5", "w") as file:
        file.attrs[attribute] = ["vit"]
    assert transformers_h5.is_transformers(tmp_path / "model.h5")


@pytest.mark.once
def test_a_file_of_another_model_of_keras_2_is_refused(tmp_path):
    with h5py.File(tmp_path / "other.h5", "w") as file:
        file.attrs["layer_names"] = ["dense"]
        file["dense/dense/kernel:0"] = np.zeros((3, 4), "f4")
        file["dense"].attrs["weight_names"] = ["dense/kernel:0"]
    with pytest.raises(ValueError, match="names of a checkpoint must be those of one dialect"):
        load(tmp_path / "other.h5")


@pytest.mark.once
def test_an_index_that_disagrees_with_its_files_is_refused(tmp_path):
    folder = tmp_path / "folder"
    shutil.copytree(GOLDEN / "vit_in_shards", folder)
    index = json.loads((folder / "tf_model.h5.index.json").read_text())
    name = next(name for name in index["weight_map"] if name.endswith("cls_token:0"))
    del index["weight_map"][name]
    (folder / "tf_model.h5.index.json").write_text(json.dumps(index))
    with pytest.raises(ValueError, match="does not list vit.embeddings.cls_token"):
        load(folder)


@pytest.mark.once
def test_a_configuration_that_is_no_json_is_refused(tmp_path):
    copy("vit", tmp_path)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(ValueError, match=r"config\.json.*not JSON"):
        load(tmp_path)
