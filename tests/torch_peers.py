"""timm where its optional parts are missing: it imports torchvision for data sets that no test here
needs.
"""

import importlib.machinery
import importlib.util
import sys
import types

import pytest


class _AnyAttribute(type):
    def __getattr__(cls, name: str):
        if name.startswith("__"):
            raise AttributeError(name)
        return name


class _Anything(metaclass=_AnyAttribute):
    """Stands for every name of the absent package."""


class _Absent(types.ModuleType):
    __path__: list[str] = []

    def __getattr__(self, name: str):
        if name.startswith("__"):
            raise AttributeError(name)
        return _Anything


_TORCHVISION = (
    "torchvision",
    "torchvision.datasets",
    "torchvision.models",
    "torchvision.models.feature_extraction",
    "torchvision.ops",
    "torchvision.ops.misc",
    "torchvision.transforms",
    "torchvision.transforms.functional",
)


def import_timm():
    """Returns timm, or skips the test where torch or timm is absent."""
    pytest.importorskip("torch")
    if importlib.util.find_spec("timm") is None:
        pytest.skip("timm is not installed")
    if "torchvision" not in sys.modules and not _torchvision_works():
        _look_for_torchvision()
        for name in _TORCHVISION:
            sys.modules[name] = _Absent(name)
            sys.modules[name].__spec__ = importlib.machinery.ModuleSpec(name, None)
            parent, _, child = name.rpartition(".")
            if parent:
                setattr(sys.modules[parent], child, sys.modules[name])
    import timm

    return timm


def _look_for_torchvision() -> None:
    """Transformers must see that it is absent before the stand-in is there."""
    if importlib.util.find_spec("transformers") is not None:
        from transformers.utils import is_torchvision_available

        is_torchvision_available()


def _torchvision_works() -> bool:
    """There is no CPU build of it in the registry, and the CUDA build does not import beside
    torch's CPU build.
    """
    try:
        import torchvision  # noqa: F401
    except Exception:
        for name in [name for name in sys.modules if name.startswith("torchvision")]:
            del sys.modules[name]
        return False
    return True
