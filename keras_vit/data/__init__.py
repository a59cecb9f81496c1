"""Examples, from where they lie to a batch on its way into a model: sources, transforms, order, pipelines."""
