"""Examples, from where they lie to a batch on its way into a model.

`sources` says where they are, `transforms` and `randaugment` change an image, `pipeline` makes
batches; `fractals` draws an unlimited pre-training set, `duplicates` finds training images that are
in the test set too.
"""

from keras_vit.data import duplicates, fractals, pipeline, randaugment, sources, transforms

__all__ = ["duplicates", "fractals", "pipeline", "randaugment", "sources", "transforms"]
