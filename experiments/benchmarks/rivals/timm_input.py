"""A process of `training.py` that measures timm's input pipeline.

    python timm_input.py FOLDER TRANSFORM

Each line on standard input is a number of seconds to measure for; the answer is images per second.
"""

import io
import sys
import time
from pathlib import Path

TRANSFORMS = {
    "default": {},
    "no colour jitter": {"color_jitter": None},
    "rand-m9-mstd0.5": {"auto_augment": "rand-m9-mstd0.5"},
}
BATCH_SIZE, NUM_WORKERS = 50, 2


def main(folder: str, name: str) -> None:
    import timm.data
    import torch
    from PIL import Image

    files = [
        path.read_bytes()
        for path in sorted(Path(folder).rglob("*"))
        if path.suffix.lower() in (".jpg", ".jpeg")
    ]
    transform = timm.data.create_transform(224, is_training=True, **TRANSFORMS[name])

    class Photos(torch.utils.data.Dataset):
        def __len__(self) -> int:
            return 10_000_000

        def __getitem__(self, index: int):
            return transform(Image.open(io.BytesIO(files[index % len(files)])).convert("RGB"))

    batches = iter(torch.utils.data.DataLoader(Photos(), BATCH_SIZE, num_workers=NUM_WORKERS))
    for _ in range(4 * NUM_WORKERS):
        next(batches)
    print("ready", flush=True)
    for line in sys.stdin:
        for _ in range(2 * NUM_WORKERS):  # prefetched while the others were measured
            next(batches)
        start, images = time.perf_counter(), 0
        while time.perf_counter() - start < float(line):
            next(batches)
            images += BATCH_SIZE
        print(images / (time.perf_counter() - start), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
