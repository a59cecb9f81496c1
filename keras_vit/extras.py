"""What to install for the parts of the package that are optional, from the package's own
metadata.
"""

from collections.abc import Iterator
from importlib import metadata

from packaging.requirements import Requirement

_PACKAGE = "keras-vit"


def absent(extra: str, needs: str, error: ImportError) -> ImportError:
    """Returns the error of a part whose packages are not installed.

    Args:
        extra: Its name in `setup.cfg`.
        needs: Which part it is and what it needs, as "ONNX needs tf2onnx and onnxruntime".
        error: Of the import.

    Example:
        >>> absent("openvino", "OpenVINO is not there", ImportError("No module named 'openvino'"))
        ImportError('OpenVINO is not there: pip install "openvino>=2025.0" (No module named
        \\'openvino\\')')
    """
    return ImportError(f"{needs}: {install(extra)} ({error})")


def install(extra: str) -> str:
    """Returns the command that installs what an extra consists of.

    It names the packages themselves, since `keras-vit` is on no package index.

    Example:
        >>> install("openvino")
        'pip install "openvino>=2025.0"'
    """
    try:
        named = [f'"{name}"' for name in _requirements(extra)]
    except metadata.PackageNotFoundError:  # a folder on the path, not an installation
        return f'pip install ".[{extra}]" in a clone of the package'
    return f"pip install {' '.join(named)}"


def _requirements(extra: str) -> Iterator[str]:
    for text in metadata.requires(_PACKAGE) or ():
        requirement = Requirement(text)
        if requirement.marker is None or not requirement.marker.evaluate({"extra": extra}):
            continue
        if requirement.name == _PACKAGE:
            for inner in sorted(requirement.extras):
                yield from _requirements(inner)
        else:
            yield f"{requirement.name}{requirement.specifier}"
