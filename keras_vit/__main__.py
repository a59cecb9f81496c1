"""`python -m keras_vit`: the command line, which is `cli.py`."""

import sys

from keras_vit.cli import main

if __name__ == "__main__":
    sys.exit(main())
