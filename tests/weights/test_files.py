"""Files against NumPy, safetensors and ml_dtypes, which know nothing of us; and every way to be a
bad file.
"""

import io
import json
import math
import os
import pickle
import resource
import struct
import time
import tracemalloc
import zipfile

import h5py
import ml_dtypes
import numpy as np
import pytest
import safetensors.numpy
import torch_files
from scipy.special import erf, expit

from keras_vit.weights import files, witness
from keras_vit.weights.files import Checkpoint, detect_kind, read, write_npz, write_safetensors

ARRAYS = {
    "head/kernel": np.arange(6, dtype="float32").reshape(2, 3),
    "Transformer/encoderblock_0/LayerNorm_0/scale": np.ones(3, "float32"),
    "opt/step": np.array(7, dtype="int64"),
}
METADATA = {
    "grid": (2, 3),
    "gelu": "tanh",
    "layer_norm_epsilon": 1e-6,
    "image_size": (32, 48),
    "num_heads": 3,
}


@pytest.fixture
def npz(tmp_path):
    np.savez(tmp_path / "model.npz", **ARRAYS)
    return tmp_path / "model.npz"


def same(found, expected):
    assert list(found) == list(expected)
    for name, array in expected.items():
        assert isinstance(found[name], np.ndarray)
        assert (found[name].dtype, found[name].shape) == (array.dtype, array.shape)
        np.testing.assert_array_equal(found[name], array)


class Trap:
    """Unpickling it leaves a mark."""

    def __init__(self, mark):
        self.mark = mark

    def __reduce__(self):
        return (os.mkdir, (str(self.mark),))


# --- reading npz
# -----------------------------------------------------------------------------------------------------


def test_npz_of_numpy_is_read_with_names_order_types_and_scalars(npz):
    checkpoint = read(npz)
    assert isinstance(checkpoint, Checkpoint)
    same(checkpoint.arrays, ARRAYS)
    assert checkpoint.metadata == {}


def test_compressed_npz_is_read(tmp_path):
    np.savez_compressed(tmp_path / "model.npz", **ARRAYS)
    same(read(tmp_path / "model.npz").arrays, ARRAYS)


def test_arrays_can_be_written_to(npz):
    read(npz).arrays["head/kernel"][0, 0] = 5.0


def test_fortran_order_is_kept_straight(tmp_path):
    array = np.asfortranarray(np.arange(24, dtype="float32").reshape(2, 3, 4))
    np.savez(tmp_path / "model.npz", kernel=array)
    np.testing.assert_array_equal(read(tmp_path / "model.npz").arrays["kernel"], array)


def test_empty_array_is_read(tmp_path):
    np.savez(tmp_path / "model.npz", kernel=np.zeros((0, 3), "float32"))
    assert read(tmp_path / "model.npz").arrays["kernel"].shape == (0, 3)


def test_kind_is_told_by_content_not_by_extension(npz, tmp_path):
    npz.rename(tmp_path / "model.safetensors")
    same(read(tmp_path / "model.safetensors").arrays, ARRAYS)
    assert detect_kind(tmp_path / "model.safetensors") == "npz"


@pytest.mark.parametrize("shape", [(), (3,), (2, 3)])
def test_bfloat16_stored_as_void_becomes_float32(tmp_path, shape):
    values = np.linspace(-3, 3, max(int(np.prod(shape)), 1), dtype="float32").reshape(shape)
    half = values.astype(ml_dtypes.bfloat16)
    np.savez(tmp_path / "model.npz", kernel=half)
    with np.load(tmp_path / "model.npz") as plain:
        assert plain["kernel"].dtype == np.dtype("V2")
    found = read(tmp_path / "model.npz").arrays["kernel"]
    same({"kernel": found}, {"kernel": half.astype("float32")})


def test_float16_becomes_float32(tmp_path):
    np.savez(tmp_path / "model.npz", kernel=np.array([0.1, -2], "float16"))
    same(
        read(tmp_path / "model.npz").arrays,
        {"kernel": np.array([0.1, -2], "float16").astype("float32")},
    )


@pytest.mark.parametrize(
    ("array", "name"),
    [
        (np.zeros(2, "V3"), "V3"),
        (np.zeros(2, [("a", "u1"), ("b", "u1")]), "'a'"),
        (np.array(["text"]), "<U4"),
        (np.zeros(2, "complex64"), "complex64"),
        (np.zeros(2, ml_dtypes.float8_e4m3fn), "V1"),
    ],
)
def test_types_that_are_no_numbers_are_refused(tmp_path, array, name):
    np.savez(tmp_path / "model.npz", good=np.zeros(2), odd=array)
    with pytest.raises(ValueError, match=rf"model.npz.*not numbers \(odd: .*{name}"):
        read(tmp_path / "model.npz")


def test_pickled_objects_are_refused_by_name_and_never_unpickled(tmp_path):
    mark = tmp_path / "unpickled"
    trap = np.array([Trap(mark)], dtype=object)
    np.savez(tmp_path / "model.npz", good=np.zeros(2), first=trap, second=trap)
    with pytest.raises(
        ValueError, match=r"model.npz.*pickled objects \(first, second\).*never read"
    ):
        read(tmp_path / "model.npz")
    assert not mark.exists()
    with np.load(tmp_path / "model.npz", allow_pickle=True) as plain:  # the trap works
        assert plain["first"].size == 1
    assert mark.exists()


# --- files that are bad
# ----------------------------------------------------------------------------------------------


def test_missing_file_is_a_file_not_found_error(tmp_path):
    with pytest.raises(FileNotFoundError, match="nowhere.npz"):
        read(tmp_path / "nowhere.npz")


def test_zero_size_file_is_refused(tmp_path):
    (tmp_path / "model.npz").touch()
    with pytest.raises(ValueError, match=r"model.npz.*empty \(0 bytes\).*Download it again"):
        read(tmp_path / "model.npz")


def test_truncated_npz_is_refused_wherever_it_ends(npz):
    whole = npz.read_bytes()
    for size in range(1, len(whole), 7):
        npz.write_bytes(whole[:size])
        with pytest.raises(ValueError, match="model.npz"):
            read(npz)


def test_truncated_npz_says_so(npz):
    npz.write_bytes(npz.read_bytes()[:-100])
    with pytest.raises(ValueError, match=r"end is missing: truncated.*Download it again"):
        read(npz)


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_flipped_bits_are_noticed(tmp_path, save):
    path = tmp_path / "model.npz"
    save(path, kernel=np.random.default_rng(0).standard_normal(100).astype("float32"))
    content = bytearray(path.read_bytes())
    content[300] ^= 1
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"npz archive is truncated or damaged \("):
        read(path)


@pytest.mark.parametrize(
    ("name", "is_found"),
    [
        ("numpy.npz", True),
        ("ours.npz", True),
        ("ours.safetensors", True),
        ("library.safetensors", False),
        ("torch.pth", True),
        ("keras.weights.h5", False),
    ],
)
def test_whether_a_changed_weight_is_found_is_known(tmp_path, name, is_found):
    path, values = tmp_path / name, np.linspace(1, 2, 64, dtype="float32")
    writers = {
        "numpy.npz": lambda: np.savez(path, kernel=values),
        "ours.npz": lambda: write_npz(path, {"kernel": values}),
        "ours.safetensors": lambda: write_safetensors(path, {"kernel": values}),
        "library.safetensors": lambda: safetensors.numpy.save_file({"kernel": values}, path),
        "torch.pth": lambda: torch_files.save(path, {"kernel": values}),
        "keras.weights.h5": lambda: h5py.File(path, "w").create_dataset("kernel", data=values),
    }
    writers[name]()
    assert files.has_checksums(path) is is_found
    content = bytearray(path.read_bytes())
    place = content.index(values.tobytes()) + 10
    content[place] ^= 1
    path.write_bytes(content)
    if is_found:
        with pytest.raises(ValueError):
            read(path)
    elif name.endswith(".safetensors"):
        assert (read(path).arrays["kernel"] != values).sum() == 1


def test_an_index_has_checksums_if_each_of_its_files_has(tmp_path):
    values = {"kernel": np.ones(3, "float32")}
    write_safetensors(tmp_path / "ours.safetensors", values)
    safetensors.numpy.save_file({"bias": values["kernel"]}, tmp_path / "library.safetensors")
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"kernel": "ours.safetensors"}}))
    assert files.has_checksums(index)
    both = {"kernel": "ours.safetensors", "bias": "library.safetensors"}
    index.write_text(json.dumps({"weight_map": both}))
    assert not files.has_checksums(index)


def test_no_damage_of_one_byte_escapes_as_another_error(npz):
    whole = npz.read_bytes()
    for position in range(0, len(whole), 5):
        content = bytearray(whole)
        content[position] ^= 0xFF
        npz.write_bytes(content)
        try:
            read(npz)
        except ValueError as error:
            assert "Cannot read" in str(error), position


@pytest.mark.parametrize("shape", ["(10000000000000,)", "(-2, -3)", "(3,)"])
def test_header_that_lies_about_the_shape_is_refused_before_memory_is_taken(tmp_path, shape):
    member = io.BytesIO()
    np.lib.format.write_array(member, np.zeros(6, "float32"))
    header = member.getvalue().replace(b"(6,)", shape.encode())
    header = header.replace(b" " * (len(shape) - 4) + b"\n", b"\n", 1) if len(shape) > 4 else header
    with zipfile.ZipFile(tmp_path / "model.npz", "w") as archive:
        archive.writestr("kernel.npy", header)
    with pytest.raises(ValueError, match=r"damaged \(kernel.npy"):
        read(tmp_path / "model.npz")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"<!DOCTYPE html><html>", "web page.*look at the URL"),
        (b"\n  <html>", "web page"),
        (b"<?xml version='1.0'?><Error><Code>NoSuchKey</Code></Error>", "web page"),
        (pickle.dumps({"a": 1}), "pickle.*Save it as safetensors"),
        (b"\x89HDF\r\n\x1a\n" + b"\0" * 50, "HDF5.*truncated or damaged"),
        (b"\x93NUMPY\x01\x00", r"single array \(.npy\).*numpy.savez"),
        (b"version https://git-lfs.github.com/spec/v1", "Git LFS pointer.*git lfs pull"),
        (b'{"format": 1}', "JSON"),
        (b"\x00\x01\x02\x03", r"begins with b'\\x00\\x01\\x02\\x03'"),
    ],
)
def test_what_is_no_checkpoint_is_called_by_its_name(tmp_path, content, message):
    (tmp_path / "model.npz").write_bytes(content)
    with pytest.raises(ValueError, match=rf"(?s)model.npz.*{message}"):
        read(tmp_path / "model.npz")


def test_weights_of_keras_are_called_by_their_name(tmp_path):
    h5py = pytest.importorskip("h5py")
    with h5py.File(tmp_path / "model.npz", "w") as file:
        file["layers/dense/vars/0"] = np.zeros(3)
    with pytest.raises(ValueError, match="(?s)model.npz.*HDF5 file of Keras.*load_weights"):
        read(tmp_path / "model.npz")
    assert detect_kind(tmp_path / "model.npz") == "h5"


@pytest.mark.parametrize(
    ("member", "message"),
    [
        ("archive/data.pkl", "PyTorch file is truncated or damaged"),
        ("model.weights.h5", "Keras model.*load_model"),
        ("word/document.xml", r"not arrays \(word/document.xml\)"),
    ],
)
def test_other_zip_archives_are_called_by_their_name(tmp_path, member, message):
    with zipfile.ZipFile(tmp_path / "model.pth", "w") as archive:
        archive.writestr(member, b"content")
    with pytest.raises(ValueError, match=message):
        read(tmp_path / "model.pth")


def test_encrypted_member_is_refused(npz):
    content = npz.read_bytes()
    with zipfile.ZipFile(npz) as archive:
        entry = content.index(b"PK\x01\x02", archive.start_dir)
    npz.write_bytes(content[: entry + 8] + b"\x01" + content[entry + 9 :])
    with pytest.raises(ValueError, match=r"damaged \(.*encrypted"):
        read(npz)


def test_archive_without_arrays_is_refused(tmp_path):
    np.savez(tmp_path / "model.npz")
    with pytest.raises(ValueError, match=r"contains no arrays"):
        read(tmp_path / "model.npz")


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("write", [write_npz, write_safetensors])
def test_values_that_are_not_finite_are_refused_by_name(tmp_path, value, write):
    arrays = {f"kernel_{i}": np.ones((3, 4), "float32") for i in range(3)}
    arrays["kernel_0"][1, 2] = arrays["kernel_2"][0, 0] = value
    write(tmp_path / "model", arrays)
    with pytest.raises(ValueError, match=r"NaN or infinite values in kernel_0, kernel_2\."):
        read(tmp_path / "model")


def test_infinities_that_cancel_are_refused(tmp_path):
    write_npz(tmp_path / "model.npz", {"kernel": np.array([np.inf, -np.inf], "float32")})
    with pytest.raises(ValueError, match="NaN or infinite"):
        read(tmp_path / "model.npz")


def test_half_precision_nan_is_refused(tmp_path):
    np.savez(tmp_path / "model.npz", kernel=np.array([1, np.nan], ml_dtypes.bfloat16))
    with pytest.raises(ValueError, match="NaN or infinite values in kernel"):
        read(tmp_path / "model.npz")


def test_huge_values_whose_sum_overflows_are_finite(tmp_path):
    array = np.full(100, 3e38, "float32")
    write_npz(tmp_path / "model.npz", {"kernel": array})
    np.testing.assert_array_equal(read(tmp_path / "model.npz").arrays["kernel"], array)


def test_long_list_of_names_is_shortened(tmp_path):
    write_npz(tmp_path / "model.npz", {f"k{i}": np.array([np.nan]) for i in range(9)})
    with pytest.raises(ValueError, match="k0, k1, k2, k3, k4 and 4 more"):
        read(tmp_path / "model.npz")


# --- safetensors and Hugging Face
# ------------------------------------------------------------------------------------


@pytest.fixture
def hugging_face(tmp_path):
    safetensors.numpy.save_file(
        {"vit.layernorm.weight": np.ones(3, "float32")},
        tmp_path / "model.safetensors",
        {"format": "pt"},
    )
    config = {
        "hidden_act": "gelu",
        "layer_norm_eps": 1e-12,
        "image_size": 32,
        "patch_size": 8,
        "num_attention_heads": 3,
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    return tmp_path


def test_safetensors_of_the_library_is_read(tmp_path):
    safetensors.numpy.save_file(ARRAYS, tmp_path / "model.bin")
    found = read(tmp_path / "model.bin")
    same({name: found.arrays[name] for name in ARRAYS}, ARRAYS)
    assert detect_kind(tmp_path / "model.bin") == "safetensors"


def test_safetensors_bfloat16_becomes_float32(tmp_path):
    half = np.array([1.5, -2.25, 0.1], ml_dtypes.bfloat16)
    safetensors.numpy.save_file({"kernel": half}, tmp_path / "model.safetensors")
    same(read(tmp_path / "model.safetensors").arrays, {"kernel": half.astype("float32")})


def test_safetensors_float8_is_refused(tmp_path):
    safetensors.numpy.save_file(
        {"kernel": np.ones(2, ml_dtypes.float8_e4m3fn)}, tmp_path / "model.safetensors"
    )
    with pytest.raises(ValueError, match=r"unsupported types \(kernel: F8_E4M3\)"):
        read(tmp_path / "model.safetensors")


def test_truncated_safetensors_is_refused_wherever_it_ends(tmp_path):
    path = tmp_path / "model.safetensors"
    write_safetensors(path, ARRAYS)
    whole = path.read_bytes()
    for size in range(1, len(whole), 5):
        path.write_bytes(whole[:size])
        with pytest.raises(ValueError, match="Cannot read '.*model.safetensors"):
            read(path)
    with pytest.raises(ValueError, match="safetensors file is truncated or damaged"):
        detect_kind(path)


def test_safetensors_with_a_damaged_header_is_refused(tmp_path):
    (tmp_path / "model.safetensors").write_bytes(struct.pack("<Q", 8) + b'{"a": 1}')
    with pytest.raises(ValueError, match="safetensors file is truncated or damaged"):
        read(tmp_path / "model.safetensors")


def test_hugging_face_directory_is_read_with_its_config(hugging_face):
    checkpoint = read(hugging_face)
    assert list(checkpoint.arrays) == ["vit.layernorm.weight"]
    assert checkpoint.metadata == {
        "gelu": "exact",
        "layer_norm_epsilon": 1e-12,
        "num_heads": 3,
        "image_size": (32, 32),
        "grid": (4, 4),
    }


def test_hugging_face_config_counts_beside_a_named_file_too(hugging_face):
    assert read(hugging_face / "model.safetensors").metadata["layer_norm_epsilon"] == 1e-12


def test_rectangular_config_gives_rows_and_columns(hugging_face):
    (hugging_face / "config.json").write_text(
        json.dumps({"hidden_act": "gelu_new", "image_size": [32, 64], "patch_size": 16})
    )
    assert read(hugging_face).metadata == {"gelu": "tanh", "image_size": (32, 64), "grid": (2, 4)}


# transformers 5.24.0 `activations.py`
ACTIVATIONS = {
    "gelu": lambda x: x * 0.5 * (1 + erf(x / math.sqrt(2))),
    "gelu_new": lambda x: 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
    "gelu_fast": lambda x: 0.5 * x * (1 + np.tanh(x * 0.7978845608 * (1 + 0.044715 * x * x))),
    "gelu_pytorch_tanh": lambda x: x * expit(2 * math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)),
    "quick_gelu": lambda x: x * expit(1.702 * x),
}


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_the_activation_of_a_config_is_the_form_of_gelu_that_transformers_computes(
    name, hugging_face
):
    (hugging_face / "config.json").write_text(json.dumps({"hidden_act": name}))
    x = np.linspace(-4, 4, 41)
    found = witness.gelu(x, read(hugging_face).metadata["gelu"])
    np.testing.assert_allclose(found, ACTIVATIONS[name](x), atol=1e-6)


def test_metadata_in_the_file_wins_over_the_config(hugging_face):
    write_safetensors(hugging_face / "model.safetensors", ARRAYS, {"gelu": "tanh"})
    metadata = read(hugging_face).metadata
    assert (metadata["gelu"], metadata["num_heads"]) == ("tanh", 3)


def test_config_without_an_activation_says_the_rest(hugging_face):
    (hugging_face / "config.json").write_text(
        json.dumps({"layer_norm_eps": 1e-5, "num_attention_heads": 3})
    )
    assert read(hugging_face).metadata == {"layer_norm_epsilon": 1e-5, "num_heads": 3}


def test_config_of_another_library_is_left_alone(hugging_face):
    (hugging_face / "config.json").write_text(json.dumps({"architecture": "vit_base_patch16_224"}))
    assert read(hugging_face).metadata == {}


def test_unknown_activation_in_the_config_is_refused(hugging_face):
    (hugging_face / "config.json").write_text(json.dumps({"hidden_act": "relu"}))
    with pytest.raises(ValueError, match=r"config.json.*hidden_act is 'relu'.*gelu, gelu_new"):
        read(hugging_face)


def test_config_that_is_not_json_is_refused(hugging_face):
    (hugging_face / "config.json").write_text("{")
    with pytest.raises(ValueError, match=r"config.json.*not JSON"):
        read(hugging_face)


def test_directory_without_weights_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"directory without weights. .*model.safetensors"):
        read(tmp_path)


# --- writing
# ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("write", [write_npz, write_safetensors])
def test_there_and_back_is_the_identity(tmp_path, write):
    write(tmp_path / "model", ARRAYS, METADATA)
    checkpoint = read(tmp_path / "model")
    same({name: checkpoint.arrays[name] for name in ARRAYS}, ARRAYS)
    assert checkpoint.metadata == METADATA


def test_npz_is_read_by_plain_numpy_in_order(tmp_path):
    write_npz(tmp_path / "model.npz", ARRAYS, METADATA)
    with np.load(tmp_path / "model.npz", allow_pickle=False) as plain:
        same({name: plain[name] for name in plain.files}, ARRAYS)


def test_npz_carries_metadata_in_the_zip_comment(tmp_path):
    write_npz(tmp_path / "model.npz", ARRAYS, METADATA)
    with zipfile.ZipFile(tmp_path / "model.npz") as archive:
        assert json.loads(archive.comment)["grid"] == [2, 3]
        assert {member.compress_type for member in archive.infolist()} == {zipfile.ZIP_STORED}


@pytest.mark.parametrize("comment", [b"made by somebody", b"[1, 2]", b"\xff\xfe"])
def test_foreign_zip_comment_is_no_metadata(npz, comment):
    with zipfile.ZipFile(npz, "a") as archive:
        archive.comment = comment
    assert read(npz).metadata == {}


def test_safetensors_is_read_by_the_library_with_its_metadata(tmp_path):
    path = tmp_path / "model.safetensors"
    arrays = {
        "flag": np.array([True]),
        "odd": np.zeros(3, "int8"),
        "fortran": np.asfortranarray(np.eye(3)),
        **ARRAYS,
    }
    write_safetensors(path, arrays, METADATA)
    found = safetensors.numpy.load_file(path)
    same({name: found[name] for name in arrays}, arrays)
    with safetensors.safe_open(path, "np") as file:
        assert file.metadata()["format"] == "pt"
        assert json.loads(file.metadata()["gelu"]) == "tanh"


def test_safetensors_data_is_aligned(tmp_path):
    path = tmp_path / "model.safetensors"
    write_safetensors(path, {"odd": np.zeros(3, "int8"), "even": np.zeros(2, "float64")})
    content = path.read_bytes()
    (header_bytes,) = struct.unpack("<Q", content[:8])
    header = json.loads(content[8 : 8 + header_bytes])
    assert header_bytes % 8 == 0
    assert header["even"]["data_offsets"][0] % 8 == 0


def test_hugging_face_directory_is_written_and_read_back(tmp_path):
    config = {
        "hidden_act": "gelu_pytorch_tanh",
        "layer_norm_eps": 1e-6,
        "image_size": [32, 48],
        "patch_size": 16,
    }
    files.write_huggingface(tmp_path / "new" / "model", ARRAYS, {"num_heads": 3}, config, {})
    assert sorted(path.name for path in (tmp_path / "new" / "model").iterdir()) == [
        "config.json",
        "model.safetensors",
        "preprocessor_config.json",
    ]
    checkpoint = read(tmp_path / "new" / "model")
    same({name: checkpoint.arrays[name] for name in ARRAYS}, ARRAYS)
    assert checkpoint.metadata == {
        "gelu": "tanh",
        "layer_norm_epsilon": 1e-6,
        "num_heads": 3,
        "image_size": (32, 48),
        "grid": (2, 3),
    }


@pytest.mark.parametrize("write", [write_npz, write_safetensors])
def test_bytes_do_not_depend_on_the_day_or_on_the_order_of_metadata(tmp_path, write, monkeypatch):
    write(tmp_path / "one", ARRAYS, METADATA)
    monkeypatch.setattr(time, "time", lambda: 2e9)
    write(tmp_path / "two", ARRAYS, dict(reversed(METADATA.items())))
    assert (tmp_path / "one").read_bytes() == (tmp_path / "two").read_bytes()


@pytest.mark.parametrize("write", [write_npz, write_safetensors])
@pytest.mark.parametrize(
    "array", [np.array([{}]), np.array(["x"]), np.zeros(2, ml_dtypes.bfloat16)]
)
def test_only_numbers_are_written(tmp_path, write, array):
    with pytest.raises(ValueError, match=r"Only numbers can be written to '.*model': odd \("):
        write(tmp_path / "model", {"good": np.zeros(2), "odd": array})
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize("write", [write_npz, write_safetensors])
def test_nothing_to_write_is_an_error(tmp_path, write):
    with pytest.raises(ValueError, match="no arrays to write"):
        write(tmp_path / "model", {})


def test_npz_metadata_that_does_not_fit_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"65535 bytes\. Received: 7\d+ bytes"):
        write_npz(tmp_path / "model.npz", ARRAYS, {"note": "x" * 70000})
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize("write", [write_npz, write_safetensors])
def test_full_disk_leaves_the_older_file_and_nothing_else(tmp_path, write):
    path = tmp_path / "model"
    path.write_bytes(b"older")
    _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, hard))
    try:
        with pytest.raises(OSError, match="[Ff]ile too large"):
            write(path, {"kernel": np.zeros(100_000, "float32")})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
    assert path.read_bytes() == b"older"
    assert list(tmp_path.iterdir()) == [path]


def test_interruption_leaves_the_older_file_and_nothing_else(tmp_path):
    path = tmp_path / "model"
    path.write_bytes(b"older")
    with pytest.raises(KeyboardInterrupt), files.replacing(path) as stream:
        stream.write(b"newer")
        raise KeyboardInterrupt
    assert [(entry.name, entry.read_bytes()) for entry in tmp_path.iterdir()] == [
        ("model", b"older")
    ]


def test_replacing_keeps_the_usual_permissions(tmp_path):
    with files.replacing(tmp_path / "model") as stream:
        stream.write(b"content")
    (tmp_path / "usual").write_bytes(b"content")
    assert (tmp_path / "model").stat().st_mode == (tmp_path / "usual").stat().st_mode


# --- damage that the formats alone would not notice
# ------------------------------------------------------------------


def test_npz_that_lost_its_last_bytes_is_refused(tmp_path):
    """The metadata is there: its loss would mean another GELU, another epsilon, another grid."""
    write_npz(path := tmp_path / "model.npz", ARRAYS, METADATA)
    whole = path.read_bytes()
    for cut in range(1, 160):
        path.write_bytes(whole[:-cut])
        for refuses in (detect_kind, read):
            with pytest.raises(ValueError, match="truncated"):
                refuses(path)
    path.write_bytes(whole + b"\0")
    with pytest.raises(ValueError, match="truncated"):
        read(path)


@pytest.mark.parametrize("write", [write_npz, write_safetensors])
def test_any_changed_byte_is_harmless_or_noticed(tmp_path, write):
    write(path := tmp_path / "model", ARRAYS, METADATA)
    whole, refused = path.read_bytes(), 0
    for position in range(len(whole)):
        content = bytearray(whole)
        content[position] ^= 1 << position % 8
        path.write_bytes(content)
        try:
            found = read(path)
        except ValueError as error:
            assert str(error).startswith("Cannot read '") and "\n" not in str(error), position
            refused += 1
        else:
            assert (found.metadata, found.arrays.keys()) == (METADATA, ARRAYS.keys()), position
            same({name: found.arrays[name] for name in ARRAYS}, ARRAYS)
    assert refused > len(whole) // 4


@pytest.mark.parametrize("comment", [b"made by somebody", b""])
def test_metadata_that_was_replaced_by_another_comment_is_missed(tmp_path, comment):
    write_npz(path := tmp_path / "model.npz", ARRAYS, METADATA)
    with zipfile.ZipFile(path, "a") as archive:
        archive.comment = comment
    with pytest.raises(ValueError, match="its metadata is missing or changed"):
        read(path)


def test_metadata_of_older_files_without_a_checksum_is_read(npz):
    with zipfile.ZipFile(npz, "a") as archive:
        archive.comment = json.dumps(METADATA).encode()
    assert read(npz).metadata == METADATA


def test_two_arrays_of_one_name_are_refused(tmp_path):
    with (
        pytest.warns(UserWarning, match="Duplicate name"),
        zipfile.ZipFile(tmp_path / "model.npz", "w") as archive,
    ):
        for value in (1.0, 2.0):
            member = io.BytesIO()
            np.lib.format.write_array(member, np.full(3, value))
            archive.writestr("kernel.npy", member.getvalue())
    with pytest.raises(ValueError, match=r"several arrays of one name \(kernel\)"):
        read(tmp_path / "model.npz")


# --- files that ask for more than they are
# ---------------------------------------------------------------------------


def peak_of(call):
    """Bytes that the call takes at most; NumPy reports its arrays to tracemalloc."""
    tracemalloc.start()
    try:
        call()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def refuses(path, message, **options):
    with pytest.raises(ValueError, match=message):
        read(path, **options)


def test_compressed_arrays_are_read_piece_by_piece(tmp_path):
    np.savez_compressed(path := tmp_path / "model.npz", kernel=np.zeros(10**7, "float32"))
    assert path.stat().st_size < 10**5
    assert peak_of(lambda: read(path)) < 1.2 * 4 * 10**7


def test_nothing_is_read_of_what_is_not_chosen(tmp_path):
    np.savez_compressed(
        path := tmp_path / "model.npz",
        kernel=np.zeros(10**7, "float32"),
        bias=np.ones(3, "float32"),
    )
    claimed = {}

    def choose(found, metadata):
        claimed.update({name: (x.shape, x.dtype) for name, x in found.items()})
        return ["bias"]

    assert (
        peak_of(lambda: same(read(path, choose).arrays, {"bias": np.ones(3, "float32")}))
        < 4 * 10**6
    )
    assert claimed == {
        "kernel": ((10**7,), np.dtype("float32")),
        "bias": ((3,), np.dtype("float32")),
    }


def test_array_header_of_many_bytes_is_not_read(tmp_path):
    header = b"\x93NUMPY\x02\x00" + struct.pack("<I", 10**8) + b" " * 10**8
    with zipfile.ZipFile(path := tmp_path / "model.npz", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("kernel.npy", header)
    del header
    assert peak_of(lambda: refuses(path, "kernel.npy: ")) < 4 * 10**6


def test_directory_of_many_bytes_is_not_read(tmp_path):
    size = 10**9
    with open(path := tmp_path / "model.npz", "wb") as stream:
        stream.write(b"PK")
        stream.seek(size)
        stream.write(b"PK\x05\x06" + struct.pack("<8xLLH", size - 2, 2, 0))
    assert peak_of(lambda: refuses(path, "directory claims")) < 4 * 10**6


def test_safetensors_header_of_many_bytes_is_not_read(tmp_path):
    with open(path := tmp_path / "model.safetensors", "wb") as stream:
        stream.write(struct.pack("<Q", 9 * 10**7) + b'{"__metadata__":{}')
        stream.truncate(10**8)
    assert peak_of(lambda: refuses(path, "header claims 90000000 bytes")) < 4 * 10**6


@pytest.mark.parametrize("shape", [[2**40, 2**40], [0, 2**62], [2**63]])
def test_shapes_that_no_array_can_have_are_refused(tmp_path, shape):
    header = json.dumps(
        {"kernel": {"dtype": "F32", "shape": shape, "data_offsets": [0, 0]}}
    ).encode()
    (tmp_path / "model").write_bytes(struct.pack("<Q", len(header)) + header)
    refuses(tmp_path / "model", "Cannot read")


# --- metadata
# --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("key", "value"),
    [
        *(
            ("grid", value)
            for value in (
                "words",
                5,
                [],
                [2],
                [2, 3, 4],
                [2, 0],
                [-2, 3],
                [2.0, 3.0],
                ["2", "3"],
                None,
            )
        ),
        *(("grid", value) for value in ([True, True], [10**30, 1], {"rows": 2}, [[2], [3]])),
        *(
            ("image_size", value)
            for value in (224, "224", [224], [0, 224], [224, None], [10**9, 10**9])
        ),
        *(("gelu", value) for value in ("relu", "", None, 1, True, ["tanh"], {"tanh": 1})),
        *(
            ("layer_norm_epsilon", value)
            for value in (-1.0, 0.0, 1.0, "x", None, [1e-6], True, 1e-60, 1e300, 10**400)
        ),
        *(("layer_norm_epsilon", value) for value in (float("nan"), float("inf"))),
        *(("num_heads", value) for value in (0, -3, 3.0, "3", None, [3], True, 10**30)),
    ],
)
def test_metadata_of_other_types_or_values_is_refused_in_one_sentence(tmp_path, npz, key, value):
    with zipfile.ZipFile(npz, "a") as archive:
        archive.comment = json.dumps({**METADATA, key: value}).encode()
    strings = {name: json.dumps(text) for name, text in {**METADATA, key: value}.items()}
    safetensors.numpy.save_file(ARRAYS, tmp_path / "model.safetensors", strings)
    for path in (npz, tmp_path / "model.safetensors"):
        with pytest.raises(
            ValueError,
            match=rf"Cannot read '.*' as a checkpoint: in its metadata {key} is .*, expected ",
        ) as caught:
            read(path)
        assert "\n" not in str(caught.value) and len(str(caught.value)) < 400
    for write in (write_npz, write_safetensors):
        with pytest.raises(ValueError, match=f"in its metadata {key} is"):
            write(tmp_path / "new", ARRAYS, {key: value})
    assert not (tmp_path / "new").exists()


def test_all_that_is_wrong_with_metadata_is_said_at_once(tmp_path):
    with pytest.raises(
        ValueError,
        match="grid is 5, expected two integers .*, and num_heads is 0, expected an integer",
    ):
        write_npz(tmp_path / "model.npz", ARRAYS, {"num_heads": 0, "grid": 5})


@pytest.mark.parametrize("text", ["[" * 100_000, '{"a":' * 100_000, "1" * 10_000])
def test_metadata_nested_without_end_is_no_metadata(tmp_path, text):
    safetensors.numpy.save_file(ARRAYS, tmp_path / "model.safetensors", {"note": text})
    same(
        dict(sorted(read(tmp_path / "model.safetensors").arrays.items())),
        dict(sorted(ARRAYS.items())),
    )


@pytest.mark.parametrize(
    "text", ["5", "[1]", '"hidden_act"', "null", "true", "[" * 100_000, "\xff", ""]
)
def test_config_that_is_no_json_object_is_refused(hugging_face, text):
    (hugging_face / "config.json").write_text(text, encoding="latin-1")
    with pytest.raises(ValueError, match=r"Cannot read '.*config\.json' as a checkpoint: it is no"):
        read(hugging_face)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        *(("hidden_act", value) for value in (None, 5, ["gelu"], {})),
        *(("layer_norm_eps", value) for value in (-1.0, "x", 0, 1)),
        *(("image_size", value) for value in ("224", 0, [32], [32, 32, 3], 32.0, [32, "x"], True)),
        *(("patch_size", value) for value in ("8", 0, -8, [8], 8.0, 64)),
        *(("num_attention_heads", value) for value in (0, "3", 2.0, [3])),
    ],
)
def test_config_of_other_types_or_values_is_refused_in_one_sentence(hugging_face, key, value):
    config = json.loads((hugging_face / "config.json").read_text())
    (hugging_face / "config.json").write_text(json.dumps({**config, key: value}))
    with pytest.raises(
        ValueError, match=r"Cannot read '.*config\.json' as a checkpoint: .*(is|are) "
    ) as caught:
        read(hugging_face)
    assert "\n" not in str(caught.value)


def test_float64_beyond_float32_is_refused(tmp_path):
    """Models compute in float32, where it would be infinite."""
    write_npz(tmp_path / "model.npz", {"good": np.array([1e38]), "large": np.array([1.0, -1e39])})
    refuses(tmp_path / "model.npz", r"beyond the range of float32 in large\.")


def test_paths_may_begin_with_the_home_folder_and_missing_folders_are_named(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    write_npz("~/a.npz", ARRAYS)
    write_safetensors("~/a.safetensors", ARRAYS)
    files.write_huggingface("~/folder", ARRAYS, {}, {}, {})
    assert sorted(os.listdir(tmp_path)) == ["a.npz", "a.safetensors", "folder"]
    for write in (write_npz, write_safetensors):
        with pytest.raises(FileNotFoundError, match="Create it first: '.*none'"):
            write(tmp_path / "none" / "a", ARRAYS)
