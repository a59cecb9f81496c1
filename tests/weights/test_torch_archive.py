"""PyTorch's files: the arrays that were saved, and an error for whatever else a pickle may hold."""

import builtins
import collections
import pickle
import random
import tracemalloc
import zipfile

import numpy as np
import pytest
from torch_files import CLAIMS, HOSTILE, View, save, write_zip

from keras_vit.weights import files, torch_archive

pytestmark = pytest.mark.once

DRAWS = np.random.default_rng(0)
ARRAYS = {
    "cls_token": DRAWS.normal(size=(1, 1, 8)).astype("float32"),
    "patch_embed.proj.weight": DRAWS.normal(size=(8, 3, 2, 2)).astype("float32"),
    "blocks.0.norm1.bias": DRAWS.normal(size=8),
    "blocks.0.attn.qkv.weight": DRAWS.normal(size=(24, 8)).astype("float16"),
    "steps": np.array(7, "int64"),
}


def check(found, expected=ARRAYS) -> None:
    assert list(found) == list(expected)
    for name, array in expected.items():
        wide = array.astype("float32") if array.dtype == np.float16 else array
        assert found[name].dtype == wide.dtype
        np.testing.assert_array_equal(found[name], wide)


@pytest.mark.parametrize("prefix", ["archive", "dino_vitbase16_pretrain"])
def test_the_arrays_of_a_state_dict(tmp_path, prefix):
    save(tmp_path / "model.pth", collections.OrderedDict(ARRAYS), prefix=prefix)
    check(files.read(tmp_path / "model.pth").arrays)


@pytest.mark.parametrize("place", ["state_dict", "model", "teacher", "target_encoder"])
def test_the_arrays_of_a_training_script(tmp_path, place):
    # DINO saves its student too, and I-JEPA the encoder that it trains.
    other = {"x": np.zeros(3, "float32")}
    content = {"epoch": 3, "encoder": other, place: ARRAYS, "student": other, "lr": 0.1}
    save(tmp_path / "checkpoint.pth", content)
    check(files.read(tmp_path / "checkpoint.pth").arrays)


LAST = {"x": np.zeros(3, "float32")}


@pytest.mark.parametrize(
    "content",
    [
        # as PyTorch's example of ImageNet writes it
        {
            "epoch": 3,
            "state_dict": ARRAYS,
            "best_acc1": np.float32([0.7]),
            "optimizer": {"m": LAST},
        },
        {"model": {"state_dict": ARRAYS, "ema_state": LAST}, "scaler": np.float32([1.0])},
        {"model": {"name": "vit", "depth": 3}, "state_dict": ARRAYS},
    ],
)
def test_other_tensors_beside_the_weights_are_not_read(content, tmp_path):
    save(tmp_path / "checkpoint.pth", content)
    check(files.read(tmp_path / "checkpoint.pth").arrays)


def test_parts_of_a_model_are_not_places_of_a_training_script(tmp_path):
    parts = {"encoder": {"w": np.ones(2, "float32")}, "head": {"bias": np.ones(3, "float32")}}
    save(tmp_path / "model.pth", {"model": parts})
    names = ["encoder.w", "head.bias"]
    assert list(files.read(tmp_path / "model.pth").arrays) == names


def test_nested_dictionaries_are_names_with_dots(tmp_path):
    save(tmp_path / "model.pth", {"model": {"backbone": {"head": {"bias": np.ones(3)}}}})
    check(files.read(tmp_path / "model.pth").arrays, {"backbone.head.bias": np.ones(3)})


def test_bfloat16_is_the_upper_half_of_float32(tmp_path):
    numbers = np.array([0x3F80, 0xC000, 0x3EAA], "uint16")
    save(tmp_path / "model.pth", {"w": View(numbers, 0, (3,), (1,), "BFloat16Storage")})
    (found,) = files.read(tmp_path / "model.pth").arrays.values()
    np.testing.assert_array_equal(found, np.array([1.0, -2.0, 0.33203125], "float32"))


def test_views_share_their_numbers(tmp_path):
    numbers = np.arange(12, dtype="float32")
    views = {
        "transposed": View(numbers, 0, (4, 3), (1, 4)),
        "second half": View(numbers, 6, (2, 3), (3, 1)),
        "every other": View(numbers, 1, (3,), (4,)),
        "none": View(numbers, 12, (0, 3), (3, 1)),
    }
    save(tmp_path / "model.pth", views)
    expected = {
        "transposed": numbers.reshape(3, 4).T,
        "second half": numbers[6:].reshape(2, 3),
        "every other": numbers[1::4],
        "none": np.zeros((0, 3), "float32"),
    }
    check(files.read(tmp_path / "model.pth").arrays, expected)


def test_chosen_arrays_alone_are_read(tmp_path):
    save(tmp_path / "model.pth", ARRAYS)

    def choose(found, metadata):
        assert {name: x.shape for name, x in found.items()} == {
            name: x.shape for name, x in ARRAYS.items()
        }
        return ["cls_token"]

    check(files.read(tmp_path / "model.pth", choose).arrays, {"cls_token": ARRAYS["cls_token"]})


def refused(path, message) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        files.read(path)
    assert str(caught.value).startswith("Cannot read ")


@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.parametrize("name", HOSTILE)
@pytest.mark.parametrize("protocol", [2, 4])
def test_nothing_is_executed(tmp_path, name, nested, protocol):
    marker = tmp_path / "executed"
    value = HOSTILE[name](marker)
    content = pickle.dumps({"model": {"w": value}} if nested else value, protocol=protocol)
    write_zip(tmp_path / "model.pth", {"archive/data.pkl": content, "archive/version": b"3\n"})
    refused(tmp_path / "model.pth", "which is never executed. Load it in PyTorch")
    assert not marker.exists()


@pytest.mark.parametrize(
    "operations",
    [
        b"cbuiltins\neval\n(V1\ntR.",
        b"(V1\nibuiltins\neval\n.",
        b"\x80\x02cbuiltins\neval\n)\x81.",
        b"\x80\x02cbuiltins\neval\n)}\x92.",
        b"\x80\x02\x82\x01.",
        b"\x80\x02Pkey\n.",
        b"\x80\x02ccollections\nOrderedDict\n(]tR.",
        b"\x80\x02ccollections\nOrderedDict\n}b.",
        b"\x80\x02}X\x01\x00\x00\x00a\x88sK\x01b.",
    ],
    ids=[
        "GLOBAL",
        "INST",
        "NEWOBJ",
        "NEWOBJ_EX",
        "EXT1",
        "PERSID",
        "a filled dictionary",
        "BUILD",
        "no tensor",
    ],
)
def test_every_way_to_name_or_call_is_refused(tmp_path, operations):
    write_zip(tmp_path / "model.pth", {"archive/data.pkl": operations})
    refused(tmp_path / "model.pth", "Cannot read")


def test_the_known_names_are_never_looked_up(tmp_path, monkeypatch):
    """Nor called: the reader works where PyTorch is not installed."""
    save(tmp_path / "model.pth", ARRAYS)
    real = builtins.__import__

    def guarded(name, *arguments, **options):
        assert not name.startswith("torch.") and name != "torch"
        return real(name, *arguments, **options)

    monkeypatch.setattr(builtins, "__import__", guarded)
    check(files.read(tmp_path / "model.pth").arrays)


def test_big_endian_numbers_are_refused(tmp_path):
    save(tmp_path / "model.pth", ARRAYS)
    edited(tmp_path / "model.pth", "archive/byteorder", b"big")
    refused(tmp_path / "model.pth", "its numbers are big-endian")


def test_a_pickle_that_unpacks_to_gigabytes_is_refused_before_it_is_read(tmp_path, monkeypatch):
    monkeypatch.setattr(torch_archive, "_MAX_PICKLE_BYTES", 10**6)
    members = {"archive/data.pkl": bytes(10**6 + 1)}
    write_zip(tmp_path / "model.pth", members, zipfile.ZIP_DEFLATED)
    assert (tmp_path / "model.pth").stat().st_size < 10**4
    refused(tmp_path / "model.pth", "data.pkl claims 1000001 bytes")


@pytest.mark.parametrize("name", CLAIMS)
def test_a_pickle_takes_little_memory_whatever_it_claims(tmp_path, name):
    write_zip(tmp_path / "model.pth", {"archive/data.pkl": CLAIMS[name]})
    tracemalloc.start()
    try:
        refused(tmp_path / "model.pth", "Cannot read")
        assert tracemalloc.get_traced_memory()[1] < 100e6
    finally:
        tracemalloc.stop()


def edited(path, name: str, content: bytes | None) -> None:
    """Replaces or removes a member."""
    with zipfile.ZipFile(path) as archive:
        members = {member: archive.read(member) for member in archive.namelist()}
    members.pop(name, None)
    write_zip(path, members if content is None else members | {name: content})


@pytest.mark.parametrize(
    ("view", "message"),
    [
        (View(np.zeros(4, "float32"), 0, (10**6, 10**6), (0, 0)), "larger than its storage"),
        (View(np.zeros(4, "float32"), 0, (4, 10**12), (10**12, 1)), "larger than its storage"),
        (View(np.zeros(4, "float32"), 2, (3,), (1,)), "larger than its storage"),
        (View(np.zeros(4, "float32"), -2, (3,), (1,)), "a tensor that is none"),
        (View(np.zeros(4, "float32"), 0, (3,), (-1,)), "a tensor that is none"),
        (View(np.zeros(4, "float32"), 0, (2, 2), (1,)), "a tensor that is none"),
        (View(np.zeros(4, "float32"), 0, (1.5,), (1,)), "a tensor that is none"),
        (View(np.zeros(4, "float32"), 0, (1,) * 40, (1,) * 40), "impossible shape"),
    ],
)
def test_tensors_stay_within_their_storage(tmp_path, view, message):
    save(tmp_path / "model.pth", {"w": view})
    refused(tmp_path / "model.pth", message)


def test_storages_are_checked_against_the_archive(tmp_path):
    path = tmp_path / "model.pth"
    save(path, {"w": np.arange(4, dtype="float32")})
    edited(path, "archive/data/0", b"\0" * 12)
    refused(path, "4 numbers do not fit 12 bytes")
    edited(path, "archive/data/0", None)
    refused(path, "its storage '0' is missing")


def test_a_terabyte_that_is_only_declared(tmp_path):
    path = tmp_path / "model.pth"
    save(path, {"w": View(np.zeros(4, "float32"), 0, (2**38,), (1,))})
    refused(path, "larger than its storage")


@pytest.mark.parametrize("partial", [False, True])
def test_changed_numbers_are_noticed(tmp_path, partial):
    path = tmp_path / "model.pth"
    numbers = np.arange(400, dtype="float32")
    save(path, {"w": View(numbers, 100 if partial else 0, (300 if partial else 400,), (1,))})
    content = bytearray(path.read_bytes())
    place = content.index(numbers[390:].tobytes())
    content[place] ^= 1
    path.write_bytes(content)
    refused(path, "bad checksum")


def test_a_zip_bomb_and_members_of_one_name(tmp_path):
    path = tmp_path / "model.pth"
    save(path, {"w": np.zeros(10**6, "float32")}, compression=zipfile.ZIP_DEFLATED)
    refused(path, "it is compressed")
    with pytest.warns(UserWarning, match="Duplicate name"), zipfile.ZipFile(path, "w") as archive:
        for _ in range(2):
            archive.writestr("archive/data.pkl", b"\x80\x02}.")
    refused(path, "several members of one name")


def test_programs_and_other_files_are_refused(tmp_path):
    path = tmp_path / "model.pt"
    write_zip(
        path, {"m/data.pkl": b"\x80\x02}.", "m/code/__torch__.py": b"", "m/constants.pkl": b""}
    )
    refused(path, "TorchScript program")
    save(path, {"optimizer": {"lr": 0.1}, "epoch": 3})
    refused(path, "it holds no state dict, only optimizer, epoch")
    save(path, [1, 2])
    refused(path, "holds a list, not a state dict")
    path.write_bytes(pickle.dumps({"w": 1}, protocol=2))
    refused(path, "pickle .an old PyTorch checkpoint")


def test_two_hundred_mutated_hostile_pickles(tmp_path):
    """Each is an error, and nothing is executed."""
    path, marker, draws = tmp_path / "model.pth", tmp_path / "executed", random.Random(1)
    hostile = [*(pickle.dumps(make(marker), 2) for make in HOSTILE.values()), *CLAIMS.values()]
    for _ in range(200):
        content = bytearray(draws.choice(hostile))
        for _ in range(draws.choice([1, 1, 2, 5])):
            place = draws.randrange(len(content) + 1)
            end = place + draws.choice([0, 1, 1, 1, 10])
            content[place:end] = draws.randbytes(draws.choice([0, 1, 1, 1, 4]))
        write_zip(path, {"archive/data.pkl": bytes(content)})
        refused(path, "Cannot read")
        assert not marker.exists()


def test_two_hundred_damaged_files(tmp_path):
    """A damaged file raises an error, or its arrays equal the saved ones."""
    path, draws = tmp_path / "model.pth", random.Random(0)
    save(path, ARRAYS)
    whole = path.read_bytes()
    refusals = 0
    for _ in range(200):
        content = bytearray(whole)
        for _ in range(draws.choice([1, 1, 1, 5, 50])):
            content[draws.randrange(len(content))] = draws.randrange(256)
        path.write_bytes(
            content[: draws.choice([len(content)] * 9 + [draws.randrange(len(content))])]
        )
        try:
            found = files.read(path).arrays
        except ValueError as error:
            assert str(error).startswith("Cannot read ")
            refusals += 1
        else:
            check(found)
    assert refusals > 100


def test_what_pytorch_itself_writes(tmp_path):
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    tensors = {name: torch.from_numpy(array.copy()) for name, array in ARRAYS.items()}
    tensors["half"] = torch.arange(5).to(torch.bfloat16)
    tensors["parameter"] = torch.nn.Parameter(torch.ones(3, 2)).t()
    torch.save(collections.OrderedDict(tensors), tmp_path / "model.pth")
    expected = {
        name: x.detach().float().numpy()
        if x.is_floating_point() and x.dtype != torch.float64
        else x.numpy()
        for name, x in tensors.items()
    }
    check(files.read(tmp_path / "model.pth").arrays, expected)
