"""The name of the processor that computes a trial, for its row.

Another processor adds numbers in another order: blocks of a product fit its caches. So the last
bits of the weights differ, and a training amplifies them.
"""

import platform
import re
from pathlib import Path

from keras_vit.devices import Devices, has_accelerator

CPU_INFO = Path("/proc/cpuinfo")  # Linux


def name_processor(devices: Devices) -> str:
    """Returns the name of the CPU, or the description of the devices if they are accelerators."""
    return devices.description if has_accelerator() else name_cpu()


def name_cpu() -> str:
    """Returns the name of the CPU with its model number, or at least its architecture."""
    try:
        text = CPU_INFO.read_text(encoding="utf-8")
    except OSError:
        text = ""
    name, model = (
        re.search(rf"^{field}[ \t]*:[ \t]*(\S.*)$", text, re.MULTILINE)
        for field in ("model name", "model")
    )
    if not name:
        return platform.processor() or platform.machine()
    # virtual machines give all models of a manufacturer one name, such as "AMD EPYC"
    return name[1].strip() + (f", model {model[1].strip()}" if model else "")


def explain_change(before: str | None, now: str | None) -> str:
    """Returns why a trial that ran again may differ from its row, or "" if both processors are the
    same.

    Args:
        before: Processor of the row; None if the row names none.
        now: Processor that computed the trial again; None if the run names none.
    """
    if before == now:
        return ""
    return (
        f"Computed on {before or 'an unknown processor'}, and again on "
        f"{now or 'an unknown processor'}. Another processor changes the last bits of the weights: "
        "compare on the same one."
    )
