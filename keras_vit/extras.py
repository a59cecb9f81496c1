"""What to install for the optional parts of the package, as its metadata states."""

from collections.abc import Iterator
from importlib import metadata

from packaging.requirements import Requirement

_PACKAGE = "keras-vit"


def absent(extra: str, needs: str, error: ImportError) -> ImportError:
    """Returns the error for an optional part whose packages are not installed.

    Args:
        extra: Name of the extra in `setup.cfg`.
        needs: The part and what it needs, such as "ONNX needs tf2onnx and onnxruntime".
        error: The error that the import raised.

    Example:
        >>> absent("openvino", "OpenVINO is missing", ImportError("No module named 'openvino'"))
        ImportError('OpenVINO is missing: pip install "openvino>=2025.3" (No module named
        \\'openvino\\')')
    """
    return ImportError(f"{needs}: {install(extra)} ({error})")


def install(extra: str) -> str:
    """Returns the command that installs the packages of an extra.

    It lists the packages, because `keras-vit` is not on a package index.

    Example:
        >>> install("openvino")
        'pip install "openvino>=2025.3"'
    """
    try:
        named = [f'"{name}"' for name in _list_requirements(extra)]
    except metadata.PackageNotFoundError:  # used from a folder on the path, not installed
        return f'pip install ".[{extra}]" in a clone of the package'
    return f"pip install {' '.join(named)}"


def _list_requirements(extra: str) -> Iterator[str]:
    for text in metadata.requires(_PACKAGE) or ():
        requirement = Requirement(text)
        if requirement.marker is None or not requirement.marker.evaluate({"extra": extra}):
            continue
        if requirement.name == _PACKAGE:
            for inner in sorted(requirement.extras):
                yield from _list_requirements(inner)
        else:
            yield f"{requirement.name}{requirement.specifier}"
