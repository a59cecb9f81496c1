"""Executes a notebook in its own process, and stores its outputs in the file.

    python website/execute.py docs/tutorials/first_vit.ipynb

Times, the names of temporary folders and streams of warnings are not stored, so that a second
execution changes only what the code prints.
"""

import sys
import time
from pathlib import Path

import nbclient
import nbformat


def execute(path: Path) -> float:
    """Executes a notebook, and returns the seconds that it took.

    Raises:
        nbclient.exceptions.CellExecutionError: If a cell raises. The file is then not changed.
    """
    notebook = nbformat.read(path, as_version=4)
    started = time.monotonic()
    nbclient.NotebookClient(notebook, kernel_name="python3", timeout=None).execute()
    seconds = time.monotonic() - started
    notebook.metadata = {
        "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
        "language_info": {"name": "python"},
    }
    for cell in notebook.cells:
        cell.metadata.pop("execution", None)
        if cell.cell_type == "code":
            cell.outputs = [each for each in cell.outputs if each.get("name") != "stderr"]
    nbformat.write(notebook, path)
    return seconds


if __name__ == "__main__":
    print(f"{execute(Path(sys.argv[1])):.0f} s")
