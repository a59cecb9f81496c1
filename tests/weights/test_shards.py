"""Checkpoints over several files, as Hugging Face splits large ones."""

import json

import numpy as np
import pytest
from torch_files import save

from keras_vit.weights import files

pytestmark = pytest.mark.once

ARRAYS = {
    "embeddings.cls_token": np.arange(4, dtype="float32").reshape(1, 1, 4),
    "layernorm.weight": np.ones(4, "float32"),
    "layernorm.bias": np.zeros(4, "float32"),
}
FILES = {
    "embeddings.cls_token": "model-00001-of-00002.safetensors",
    "layernorm.weight": "model-00002-of-00002.safetensors",
    "layernorm.bias": "model-00002-of-00002.safetensors",
}
INDEX = "model.safetensors.index.json"


@pytest.fixture
def folder(tmp_path):
    for file in set(FILES.values()):
        part = {name: ARRAYS[name] for name in ARRAYS if FILES[name] == file}
        files.write_safetensors(tmp_path / file, part)
    (tmp_path / INDEX).write_text(json.dumps({"metadata": {"total_size": 48}, "weight_map": FILES}))
    (tmp_path / "config.json").write_text(json.dumps({"num_attention_heads": 2}))
    return tmp_path


@pytest.mark.parametrize("name", ["", INDEX])
def test_all_files_are_read_by_folder_and_by_index(folder, name):
    found = files.read(folder / name)
    assert found.arrays.keys() == ARRAYS.keys() and found.metadata == {"num_heads": 2}
    for name, array in ARRAYS.items():
        np.testing.assert_array_equal(found.arrays[name], array)


def test_chosen_arrays_are_chosen_among_those_of_all_files(folder):
    def choose(found, metadata):
        assert found.keys() == ARRAYS.keys()
        return ["layernorm.bias"]

    assert list(files.read(folder, choose).arrays) == ["layernorm.bias"]


def test_one_file_goes_before_an_index(folder):
    files.write_safetensors(folder / "model.safetensors", {"a": np.ones(3, "float32")})
    assert list(files.read(folder).arrays) == ["a"]


def test_files_of_pytorch_are_split_likewise(tmp_path):
    for number, name in enumerate(ARRAYS):
        save(tmp_path / f"part{number}.bin", {name: ARRAYS[name]})
    files_of = {name: f"part{number}.bin" for number, name in enumerate(ARRAYS)}
    (tmp_path / "pytorch_model.bin.index.json").write_text(json.dumps({"weight_map": files_of}))
    assert files.read(tmp_path).arrays.keys() == ARRAYS.keys()


def index_with(folder, **changes) -> None:
    files_of = {name: file for name, file in (FILES | changes).items() if file is not None}
    (folder / INDEX).write_text(json.dumps({"weight_map": files_of}))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"head.bias": "model-00001-of-00002.safetensors"}, "lists head.bias, which its files do"),
        ({"layernorm.bias": None}, "does not list layernorm.bias as arrays of model-00002"),
        ({"layernorm.bias": "model-00001-of-00002.safetensors"}, "does not list layernorm.bias"),
        ({"head.bias": "model-3.safetensors"}, "names the file model-3.safetensors, which is miss"),
        ({"head.bias": "../model.safetensors"}, "outside its folder .head.bias: '../model"),
        ({"head.bias": "/etc/passwd"}, "outside its folder"),
        ({"head.bias": ".."}, "outside its folder"),
        ({"head.bias": 3}, "outside its folder .head.bias: 3"),
    ],
)
def test_an_index_that_disagrees_with_its_files_is_refused(folder, changes, message):
    index_with(folder, **{name.replace("_", "."): file for name, file in changes.items()})
    with pytest.raises(ValueError, match=message):
        files.read(folder)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "it is not JSON"),
        ("[" * 100_000, "it is not JSON .nested too deeply"),
        ("[]", "it has no `weight_map`"),
        ('{"weight_map": {}}', "it has no `weight_map`"),
        ('{"weight_map": [1]}', "it has no `weight_map`"),
    ],
)
def test_a_damaged_index_is_refused(folder, text, message):
    (folder / INDEX).write_text(text)
    with pytest.raises(ValueError, match=message):
        files.read(folder)


def test_arrays_of_one_name_in_two_files_are_refused(folder):
    files.write_safetensors(
        folder / FILES["embeddings.cls_token"],
        {name: ARRAYS[name] for name in ("embeddings.cls_token", "layernorm.bias")},
    )
    with pytest.raises(ValueError, match="does not list layernorm.bias as arrays of model-00001"):
        files.read(folder)
