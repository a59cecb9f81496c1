"""Files as `torch.save` writes them, made without PyTorch; and hostile pickles."""

import collections
import io
import os
import pickle
import sys
import types
import zipfile
from collections.abc import Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

_STORAGES = {
    "float64": "DoubleStorage",
    "float32": "FloatStorage",
    "float16": "HalfStorage",
    "int64": "LongStorage",
    "bool": "BoolStorage",
}


class View:
    """A tensor over numbers that it may share with others."""

    def __init__(
        self, numbers: np.ndarray, offset: int, shape: tuple, strides: tuple, storage=None
    ):
        self.numbers, self.offset, self.shape, self.strides = numbers, offset, shape, strides
        self.storage = storage or _STORAGES[numbers.dtype.name]


class _Pickler(pickle.Pickler):
    def __init__(self, stream, torch: types.ModuleType, utils: types.ModuleType):
        super().__init__(stream, protocol=2)
        self.torch, self.utils, self.keys = torch, utils, {}

    def persistent_id(self, value: Any) -> Any:
        if not isinstance(value, _Storage):
            return None
        key = self.keys.setdefault(id(value.numbers), (str(len(self.keys)), value.numbers))[0]
        kind = getattr(self.torch, value.kind)
        return ("storage", kind, key, "cpu", value.size)

    def reducer_override(self, value: Any) -> Any:
        if isinstance(value, View):
            storage = _Storage(value.numbers, value.storage)
            hooks = collections.OrderedDict()
            arguments = (storage, value.offset, value.shape, value.strides, False, hooks)
            return self.utils._rebuild_tensor_v2, arguments
        return NotImplemented


class _Storage:
    def __init__(self, numbers: np.ndarray, kind: str):
        self.numbers, self.kind, self.size = numbers, kind, numbers.size


def whole(array: np.ndarray) -> View:
    array = np.array(array, order="C")
    flat, strides = array.reshape(-1), tuple(step // array.itemsize for step in array.strides)
    return View(flat, 0, array.shape, strides)


def save(path: Path, content: Any, *, prefix: str = "archive", compression=zipfile.ZIP_STORED):
    """Writes `content`, in which arrays stand for contiguous tensors."""
    with _modules() as (torch, utils):
        stream = io.BytesIO()
        pickler = _Pickler(stream, torch, utils)
        pickler.dump(_with_views(content))
    members = {f"{prefix}/data.pkl": stream.getvalue(), f"{prefix}/byteorder": b"little"}
    for key, numbers in pickler.keys.values():
        members[f"{prefix}/data/{key}"] = numbers.tobytes()
    write_zip(path, members | {f"{prefix}/version": b"3\n"}, compression)


def write_zip(path: Path, members: Mapping[str, bytes], compression=zipfile.ZIP_STORED) -> None:
    with zipfile.ZipFile(path, "w", compression) as archive:
        for name, content in members.items():
            archive.writestr(name, content)


def _with_views(content: Any) -> Any:
    if isinstance(content, np.ndarray):
        return whole(content)
    if isinstance(content, dict):
        return type(content)((key, _with_views(value)) for key, value in content.items())
    return content


@contextmanager
def _modules():
    """The modules and names that a pickle of PyTorch's mentions."""
    torch, utils = types.ModuleType("torch"), types.ModuleType("torch._utils")

    def _rebuild_tensor_v2(*_):
        raise AssertionError("nothing may call this")

    _rebuild_tensor_v2.__module__, _rebuild_tensor_v2.__qualname__ = (
        "torch._utils",
        "_rebuild_tensor_v2",
    )
    utils._rebuild_tensor_v2 = _rebuild_tensor_v2
    for name in [*_STORAGES.values(), "BFloat16Storage"]:
        setattr(torch, name, type(name, (), {"__module__": "torch"}))
    before = {name: sys.modules.get(name) for name in ("torch", "torch._utils")}
    sys.modules |= {"torch": torch, "torch._utils": utils}
    try:
        yield torch, utils
    finally:
        for name, module in before.items():
            if module is None:
                del sys.modules[name]
            else:
                sys.modules[name] = module


# ---- hostile pickles


class Calls:
    """A pickle of it calls a function when it is loaded."""

    def __init__(self, function, *arguments):
        self.called = function, arguments

    def __reduce__(self):
        return self.called


# Functions of a path that must not exist after the pickle is read.
HOSTILE = {
    "os.system": lambda marker: Calls(os.system, f"touch {marker}"),
    "builtins.eval": lambda marker: Calls(eval, f"open({str(marker)!r}, 'w')"),
    "builtins.exec": lambda marker: Calls(exec, f"open({str(marker)!r}, 'w')"),
    "builtins.getattr": lambda marker: Calls(getattr, "text", "upper"),
    "a namespace": lambda marker: __import__("argparse").Namespace(epoch=3),
    "a function of NumPy": lambda marker: Calls(np.save, str(marker), 0),
}


def deep(depth: int) -> bytes:
    return b"\x80\x02" + b"]" * depth + b"a" * (depth - 1) + b"."


def laughs() -> bytes:
    """Ten dictionaries, each a hundred times in the next one; all of them in a dictionary."""
    text = b"\x80\x02}(X\x05\x00\x00\x00model}q\x00"
    for level in range(10):
        pairs = b"".join(b"X\x02\x00\x00\x00%02dh%c" % (i, level) for i in range(100))
        text += b"X\x02\x00\x00\x00L%d}q%c(" % (level, level + 1) + pairs + b"u"
    return text + b"u."


# Small files that claim to be large.
CLAIMS = {
    "deep": deep(200_000),
    "laughs": laughs(),
    "text": b"\x80\x02X\xff\xff\xff\x7fabc.",
    "number": b"\x80\x02\x8b\xff\xff\xff\x7fabc.",
    "bytes": b"\x80\x04\x96\xff\xff\xff\xff\xff\x00\x00\x00abc.",
    "memo": b"\x80\x02}r\xff\xff\xff\x7f.",
    "digits": b"L" + b"9" * 100_000 + b"L\n.",
    "empty": b"",
    "nothing": b".",
    "cut": b"\x80\x02}",
    "in itself": b"\x80\x02}q\x00X\x01\x00\x00\x00ah\x00s.",
}
