"""Training: one `fit` on one device or many, checkpoints that a kill cannot hurt, the paper's optimization."""
