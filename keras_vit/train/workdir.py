"""The folder of a run: whose it is, and whether the same run may go on in it.

A run writes its config beside its checkpoints, and refuses the folder of a run with another.
"""

import hashlib
import json
import platform
import tempfile
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import keras
from absl import logging

from keras_vit.data.sources import Source
from keras_vit.devices import Devices
from keras_vit.train.config import flatten_config
from keras_vit.weights.download import without_secrets
from keras_vit.writing import write_atomically


def check_folder(workdir: Path, config: Any, data: Sequence[Source | None] = ()) -> bool:
    """Makes the folder of a run, and returns whether this very run was begun there already.

    Args:
        workdir: Of the run.
        config: The whole config.
        data: What is learned from and what is validated on; nothing to leave them unchecked.

    Raises:
        ValueError: If it holds a run with another config, or the data have changed since it was
            begun.
        OSError: If it cannot be written.
    """
    path = workdir / "config.json"
    try:
        workdir.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=workdir).close()
        if not path.exists():
            return False
        theirs = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(theirs, dict) or not {"config", "versions"} <= theirs.keys():
            raise ValueError("it has other fields")
    except OSError as error:
        raise OSError(
            f"Cannot write to {workdir}: {error.strerror}. Choose another folder for the run."
        ) from error
    except ValueError as error:
        raise ValueError(
            f"{path} is not the config of a run: {error}. Choose another folder for the run."
        ) from error
    ours = describe_config(config)
    there = {name: without_secrets(str(value)) for name, value in theirs["config"].items()}
    # Where it runs may change from one part of a run to the next; what it computes may not.
    where = ("devices.kind", "devices.names", "devices.jit_compile")
    different = [
        name
        for name in sorted({*ours, *there})
        if ours.get(name) != there.get(name) and not name.endswith(where)
    ]
    if different:
        lines = [
            f"  {name}: there {theirs['config'].get(name)}, here {ours.get(name)}"
            for name in different[:12]
        ]
        raise ValueError(
            f"{workdir} holds a run with another config:\n"
            + "\n".join(lines)
            + "\nChoose another folder for the run."
        )
    if data and theirs.get("data_sha256") != data_sha256(data):
        names = " and ".join(part.name for part in data if part is not None)
        raise ValueError(
            f"The data have changed since the run in {workdir} was begun: {names}. Images were "
            "added, removed or replaced, or copied without their times of change. Restore them, or "
            "choose another folder for the run."
        )
    return True


def data_sha256(data: Sequence[Source | None]) -> str:
    """Returns a hash of the examples of a run: of those that are learned from, and of those that
    are validated on.
    """
    parts = ["none" if part is None else part.sha256() for part in data]
    return hashlib.sha256(" ".join(parts).encode()).hexdigest()


def claim(workdir: Path, config: Any, data: Sequence[Source | None], devices: Devices) -> None:
    """Writes the config into the folder, once."""
    path, ours = workdir / "config.json", versions()
    # The files of other workers may be copies, with times of their own.
    if check_folder(workdir, config, data if devices.is_chief else ()):
        theirs = json.loads(path.read_text(encoding="utf-8"))["versions"]
        changed = {name: version for name, version in ours.items() if theirs.get(name) != version}
        if changed:
            logging.warning(
                "This run was begun with other versions, so its bits may differ: now %s.", changed
            )
    elif devices.is_chief:
        with write_atomically(path) as partial:
            record = {
                "config": describe_config(config),
                "versions": ours,
                "data_sha256": data_sha256(data),
            }
            partial.write_text(json.dumps(record, indent=1), encoding="utf-8")


def describe_config(config: Any) -> dict[str, str]:
    """Returns the fields of a config as they are written down, without passwords."""
    facts = {"recipe": type(config).__name__, **flatten_config(config)}
    return {name: without_secrets(value) for name, value in facts.items()}


def versions() -> dict[str, str]:
    """Returns the versions of what computes the numbers."""
    return {
        "Python": platform.python_version(),
        "Keras": keras.__version__,
        "TensorFlow": version("tensorflow"),
        "backend": keras.backend.backend(),
        **({"JAX": version("jax")} if keras.backend.backend() == "jax" else {}),
    }
