"""Records weights and outputs of small models of timm, Transformers and OpenCLIP.

    PYTHONPATH=.:tests python tests/golden/families/make.py

Needs torch, timm 1.0.31, transformers 5.24.0 and open_clip 3.3.0. Weights are random, rounded to
half precision. `outputs.npz` has tokens and logits of each model at its native size and at a
rectangular one, if the model resizes its positions by itself.
"""

import shutil
from pathlib import Path

import family_peers as peers
import numpy as np
from torch_peers import import_timm

HERE = Path(__file__).parent
NATIVE, RECTANGLE = (peers.SIZE, peers.SIZE), (32, 56)


def main() -> None:
    import torch
    from safetensors.torch import save_file

    import_timm()
    outputs = {}
    for package, names in peers.RECORDED.items():
        for name in names:
            case, folder = peers.ALL[package][name], HERE / peers.name_folder(package, name)
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
            torch.manual_seed(0)
            model = peers.randomize(case.make(NATIVE, peers.RECORDED_SIZES))
            model.load_state_dict(model.half().state_dict())
            model = model.float()
            sizes = (NATIVE, RECTANGLE) if package == "transformers" else (NATIVE,)
            for size in sizes:
                images = peers.images_of(size, count=1)
                with torch.no_grad():
                    tokens, _, logits = case.answer(model, peers.pixels_for(case, images))
                key = f"{folder.name}/{size[1]}"
                outputs[f"{key}/tokens"] = tokens.numpy()
                if logits is not None:
                    outputs[f"{key}/logits"] = logits.numpy()
            if package == "transformers":
                model.half().save_pretrained(folder)
                continue
            prefix = "visual." if package == "open_clip" else ""
            state = {prefix + name: x.contiguous() for name, x in model.half().state_dict().items()}
            save_file(state, folder / "model.safetensors")
    np.savez_compressed(HERE / "outputs.npz", **outputs)


if __name__ == "__main__":
    main()
