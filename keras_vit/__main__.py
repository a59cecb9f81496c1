"""`python -m keras_vit`, which runs `cli.py`."""

import sys

from keras_vit.cli import main

if __name__ == "__main__":
    sys.exit(main())
