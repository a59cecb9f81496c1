"""The page of results: all studies of `ablations.py` that have rows, with their verdicts.

    python experiments/results.py [--results=experiments/results] [--docs=docs]

It reads `trials.csv`, `study.json` and, if it exists, `inside.csv` of each folder `<study>` in
`--results`, and writes `results.md` and pictures `results_<study>*.png` for each study into
`--docs`. The same files give the same bytes.
"""

from pathlib import Path

import command_line.native_logs

from ablations.page import write_results
from absl import app, flags
from command_line.exit_codes import exit_on_error

from keras_vit.drawing import check_can_draw

ROOT = Path(__file__).parents[1]

_RESULTS = flags.DEFINE_string(
    "results", str(ROOT / "experiments" / "results"), "Folder with a folder for each study."
)
_DOCS = flags.DEFINE_string("docs", str(ROOT / "docs"), "Folder of the page and its pictures.")


@exit_on_error()
def main(_: list[str]) -> None:
    """Writes the page and prints its path."""
    check_can_draw()
    print(write_results(Path(_RESULTS.value).expanduser(), Path(_DOCS.value).expanduser()))


if __name__ == "__main__":
    app.run(main)
