"""GPU Trainer: see what a GPU does for training."""

__version__ = "0.1.0"
