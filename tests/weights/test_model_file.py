"""What a file claims to hold, against what a model can have: names, types and sizes, before
anything is read.
"""

import io
import json
import struct
import tracemalloc
import zipfile

import keras
import numpy as np
import pytest
from synthetic_checkpoint import checkpoint

import keras_vit
from keras_vit.variants import VIT_VARIANTS
from keras_vit.weights import dialects, files, identity, model_file, source

TI16 = VIT_VARIANTS["ViT_Ti16"]
MODEL_BYTES = 4 * 5_717_416


@pytest.fixture(scope="module")
def arrays():
    return checkpoint(TI16, image_size=64, classes=7)


def _write_bomb(path, arrays, name, shape):
    """A compressed npz of a model, in which one array claims gigabytes of zeros, and has them."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        for other, array in arrays.items():
            if other != name:
                with archive.open(f"{other}.npy", "w") as member:
                    np.lib.format.write_array(member, array)
        header = io.BytesIO()
        np.lib.format.write_array_header_1_0(
            header, {"descr": "<f4", "fortran_order": False, "shape": shape}
        )
        with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
            member.write(header.getvalue())
            for _ in range(shape[1] // 1000):
                member.write(bytes(4 * shape[0] * 1000))


def _write_hole(path, arrays, name, shape):
    """A safetensors file of a model, in which one array claims gigabytes that take no room on the
    disk.
    """
    header, offset = {}, 0
    for other, array in {**arrays, name: np.broadcast_to(np.float32(0), shape)}.items():
        header[other] = {
            "dtype": "F32",
            "shape": array.shape,
            "data_offsets": [offset, offset + 4 * array.size],
        }
        offset += 4 * array.size
    text = json.dumps(header).encode()
    with open(path, "wb") as stream:
        stream.write(struct.pack("<Q", len(text)) + text)
        stream.truncate(8 + len(text) + offset)


def _write_empty(path, arrays, name, shape):
    """A Keras file with one array of gigabytes, of which nothing was ever written."""
    h5py = pytest.importorskip("h5py")
    keras_vit.ViT_Ti16(weights=None, input_shape=(64, 64, 3), classes=7).save_weights(path)
    with h5py.File(path, "r+") as file:
        variables = file["layers/dense/vars"]
        del variables["0"]
        variables.create_dataset("0", shape, "f4", chunks=(192, 1024))


def _peak(call):
    tracemalloc.start()
    try:
        call()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.fixture(scope="module", params=[_write_hole, _write_bomb, _write_empty])
def large_head(request, arrays, tmp_path_factory):
    """A file of 23 MB or less that claims a head of 768 MB."""
    folder = tmp_path_factory.mktemp("large")
    path = folder / ("model.weights.h5" if request.param is _write_empty else "model")
    request.param(path, arrays, "head/kernel", (192, 10**6))
    return path


@pytest.mark.once
@pytest.mark.parametrize("reader", ["load", "verify"])
@pytest.mark.sampled(2)
def test_a_head_without_measure_is_refused_before_it_is_read(reader, large_head):
    expected = (
        r"arrays take 7\d\d MB, and the model takes 23 MB; the largest is .*: \(192, 1000000\)"
    )

    def refuse():
        with pytest.raises(ValueError, match=expected):
            if reader == "load":
                source.load(source.find("ViT_Ti16", large_head))
            else:
                identity.examine(str(large_head))

    assert _peak(refuse) < MODEL_BYTES


@pytest.mark.parametrize("name", ["Transformer/posembed_input/pos_embedding", "pos_embedding"])
def test_a_position_table_of_gigabytes_is_refused(name, arrays, tmp_path):
    _write_hole(tmp_path / "model", arrays, name, (1, 10**6, 192))

    def refuse():
        with pytest.raises(
            ValueError, match=r"position tables are larger than any model's \(.*1000000, 192\)\)"
        ):
            model_file.read(tmp_path / "model")

    assert _peak(refuse) < MODEL_BYTES


def test_a_head_of_many_classes_is_read(arrays, tmp_path):
    """A hundred thousand classes make a file four times the usual one."""
    files.write_npz(
        tmp_path / "model.npz", arrays | {"head/kernel": np.ones((192, 10**5), "float32")}
    )
    found = {}
    read = lambda: found.update(source.load(source.find("ViT_Ti16", tmp_path / "model.npz")).arrays)  # noqa: E731
    assert _peak(read) < 2.5 * (MODEL_BYTES + 4 * 192 * 10**5)
    assert found["predictions/kernel"].shape == (192, 10**5)


def test_an_optimizer_s_slots_are_not_read(arrays, tmp_path):
    """They are three times the model, or as here not finite, and nobody uses them."""
    slots = {f"opt/state/{name}": np.full_like(array, np.nan) for name, array in arrays.items()}
    wrapped = {f"opt/target/{name}": array for name, array in arrays.items()}
    files.write_npz(tmp_path / "model.npz", {**wrapped, **slots, "opt/state/step": np.array(7)})
    found = model_file.read(tmp_path / "model.npz")
    assert found.arrays.keys() == arrays.keys() and len(found.claimed) == 2 * len(arrays) + 1


@pytest.mark.parametrize("dtype", ["int8", "int32", "uint8", "bool"])
@pytest.mark.parametrize("target", ["model.npz", "model.safetensors", "model.weights.h5"])
def test_weights_that_are_no_floats_are_refused(dtype, target, arrays, tiny_vit, tmp_path):
    """Numbers of a quantized model without its scales, or rounded ones."""
    path = tmp_path / target
    if target.endswith(".h5"):
        h5py = pytest.importorskip("h5py")
        keras_vit.application(tiny_vit)(
            weights=None, input_shape=(32, 32, 3), classes=5
        ).save_weights(path)
        with h5py.File(path, "r+") as file:
            del file["layers/dense/vars/0"]
            file["layers/dense/vars/0"] = np.zeros((16, 5), dtype)
        name = "predictions/kernel"
    else:
        name, dialect = (
            ("head/kernel", "google") if target.endswith(".npz") else ("head.weight", "timm")
        )
        theirs = dialects.from_canonical(
            arrays | {"head/kernel": np.ones((192, 7), dtype)}, dialect
        )
        (files.write_npz if dialect == "google" else files.write_safetensors)(path, theirs)
    with pytest.raises(
        ValueError, match=rf"its weights are not floats \({name}: {dtype}\). Save them as float32"
    ):
        model_file.read(path, parameters=10**7)


def test_stacked_blocks_without_end_are_refused(arrays, tmp_path):
    """Arrays of no numbers take no room, and each of their blocks would become a name."""
    _write_hole(
        tmp_path / "model",
        {"embedding/kernel": np.zeros(3, "float32")},
        "Transformer/encoderblock/x",
        (10**12, 0),
    )
    with pytest.raises(ValueError, match="At most 1000 blocks can be stacked"):
        model_file.read(tmp_path / "model")


def test_own_rows_bound_their_files_too(tiny_vit, tmp_path):
    build = keras_vit.application(tiny_vit)
    model = build(weights=None, input_shape=(32, 32, 3), classes=5)
    for weight in model.weights:
        weight.assign(keras.random.normal(weight.shape))
    keras_vit.save_checkpoint(model, tmp_path / "model.npz")
    assert build(weights=tmp_path / "model.npz", classes=5).count_params() == model.count_params()
    _write_hole(
        tmp_path / "model",
        {"Transformer/encoder_norm/bias": np.zeros(16, "f4")},
        "head/kernel",
        (16, 10**8),
    )
    with pytest.raises(ValueError, match="arrays take 6,400 MB, and the model takes 0 MB"):
        build(weights=tmp_path / "model")


@pytest.mark.parametrize(
    ("size", "grid"), [((32, 96), (6, 2)), ((32, 96), (3, 4)), ((4096, 4096), (4, 4))]
)
def test_a_grid_that_is_not_of_the_images_is_refused(size, grid, tmp_path):
    """As many patches in another order; or images a thousand times those of the table, for which
    memory would go.
    """
    arrays = checkpoint(TI16, image_size=(16 * grid[0], 16 * grid[1]), classes=7)
    files.write_npz(tmp_path / "model.npz", arrays, {"image_size": size, "grid": grid})
    with pytest.raises(
        ValueError,
        match=rf"contradict each other: images of \({size[0]}, {size[1]}\) pixels.*not of",
    ):
        keras_vit.ViT_Ti16(weights=tmp_path / "model.npz", classes=7)


@pytest.mark.parametrize(
    "grid", ["2x8", 5, (2,), (2, 8, 1), (0, 16), (-2, -8), (2.0, 8.0), [[2, 8]], (True, 16)]
)
def test_an_argument_that_is_no_grid_is_refused(grid):
    with pytest.raises(
        ValueError, match=r"`checkpoint_grid` must be two integers .*\. Received: "
    ) as caught:
        keras_vit.ViT_Ti16(weights=None, checkpoint_grid=grid)
    assert "\n" not in str(caught.value)
