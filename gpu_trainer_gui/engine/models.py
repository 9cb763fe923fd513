"""The models of the recipes, for any image size, number of channels and number of classes."""

from __future__ import annotations

import torch
from torch import nn

from gpu_trainer_gui.runs.job import JobError


def _scaled(channels: int, width: float) -> int:
    return max(1, round(channels * width))


def _two_convolutions(
    channels: int, size: tuple[int, int], classes: int, widths: tuple[int, int, int], *, padding: int, pool: int | None
) -> nn.Sequential:
    """conv 3x3, relu, [max-pool 2 with stride ``pool``], twice; flatten; dense, relu; dense to the logits."""
    first, second, hidden = widths
    layers: list[nn.Module] = []
    height, width = size
    for came, goes in ((channels, first), (first, second)):
        layers += [nn.Conv2d(came, goes, 3, padding=padding), nn.ReLU()]
        height, width = height - 2 + 2 * padding, width - 2 + 2 * padding
        if pool is not None:
            layers.append(nn.MaxPool2d(2, stride=pool))
            height, width = (height - 2) // pool + 1, (width - 2) // pool + 1
    if height < 1 or width < 1:
        raise JobError("model", f"images of {size[0]}x{size[1]} pixels are too small for two convolutions and pools")
    return nn.Sequential(
        *layers, nn.Flatten(), nn.Linear(second * height * width, hidden), nn.ReLU(), nn.Linear(hidden, classes)
    )


def _flux_cnn(channels: int, size: tuple[int, int], classes: int, width: float) -> nn.Module:
    widths = _scaled(16, width), _scaled(32, width), _scaled(128, width)
    model = _two_convolutions(channels, size, classes, widths, padding=0, pool=2)
    for module in model.modules():
        if isinstance(module, nn.Conv2d | nn.Linear):
            # Flux draws weights Glorot-uniform and starts biases at zero
            nn.init.xavier_uniform_(module.weight)
            assert module.bias is not None
            nn.init.zeros_(module.bias)
    return model


def _equinox_cnn(channels: int, size: tuple[int, int], classes: int, width: float) -> nn.Module:
    widths = _scaled(32, width), _scaled(64, width), _scaled(128, width)
    return _two_convolutions(channels, size, classes, widths, padding=0, pool=1)


def _simple_cnn(channels: int, size: tuple[int, int], classes: int, width: float) -> nn.Module:
    widths = _scaled(32, width), _scaled(64, width), _scaled(128, width)
    return _two_convolutions(channels, size, classes, widths, padding=1, pool=None)


def _resnet18(channels: int, size: tuple[int, int], classes: int, width: float) -> nn.Module:
    if min(size) < 8:
        raise JobError("model", f"resnet18 needs images of at least 8x8 pixels, not {size[0]}x{size[1]}")
    # torchvision takes seconds to import, and only this model needs it
    from torchvision.models.resnet import BasicBlock, ResNet

    model = ResNet(BasicBlock, [2, 2, 2, 2], num_classes=classes)
    # the usual stem for small images: 3x3 with stride 1 and no max-pool, so that 32x32 is not shrunk at once
    model.conv1 = nn.Conv2d(channels, 64, 3, stride=1, padding=1, bias=False)
    model.maxpool = nn.Identity()
    nn.init.kaiming_normal_(model.conv1.weight, mode="fan_out", nonlinearity="relu")
    return model if width == 1 else _widened(model, channels, classes, width)


def _widened(model: nn.Module, channels: int, classes: int, width: float) -> nn.Module:
    """The same network with every layer's channels multiplied, its weights drawn anew."""
    for name, module in list(model.named_modules()):
        parent = model.get_submodule(name.rpartition(".")[0])
        leaf = name.rpartition(".")[2]
        if isinstance(module, nn.Conv2d):
            came = channels if module.in_channels == channels else _scaled(module.in_channels, width)
            kernel, stride, padding = module.kernel_size[0], module.stride[0], int(module.padding[0])
            new = nn.Conv2d(came, _scaled(module.out_channels, width), kernel, stride, padding, bias=False)
            nn.init.kaiming_normal_(new.weight, mode="fan_out", nonlinearity="relu")
            setattr(parent, leaf, new)
        elif isinstance(module, nn.BatchNorm2d):
            setattr(parent, leaf, nn.BatchNorm2d(_scaled(module.num_features, width)))
        elif isinstance(module, nn.Linear):
            setattr(parent, leaf, nn.Linear(_scaled(module.in_features, width), classes))
    return model


_BUILDERS = {"flux-cnn": _flux_cnn, "equinox-cnn": _equinox_cnn, "simple-cnn": _simple_cnn, "resnet18": _resnet18}


def build(
    model: str, *, channels: int, size: tuple[int, int], classes: int, width: float = 1.0, seed: int = 0
) -> nn.Module:
    """The model on the CPU, its weights drawn from ``seed`` alone, the global random state untouched.

    It maps float32 images (batch, channels, height, width) to logits (batch, classes).
    Raises JobError when the images are too small for it.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return _BUILDERS[model](channels, size, classes, width)


def parameter_count(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())
