"""Does the training. torch, torchvision and numpy: no Qt."""
