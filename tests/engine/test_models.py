import pytest
import torch
from torch import nn

from gpu_trainer_gui.engine.models import build, parameter_count
from gpu_trainer_gui.runs.job import CHOICES, JobError


def test_the_flux_model_has_the_published_shape():
    model = build("flux-cnn", channels=1, size=(28, 28), classes=10, seed=1)
    linears = [module for module in model.modules() if isinstance(module, nn.Linear)]
    assert [layer.in_features for layer in linears] == [800, 128]
    assert parameter_count(model) == (9 + 1) * 16 + (16 * 9 + 1) * 32 + (800 + 1) * 128 + (128 + 1) * 10


def test_the_flux_model_starts_glorot_uniform_with_zero_biases():
    model = build("flux-cnn", channels=1, size=(28, 28), classes=10, seed=1)
    for module in model.modules():
        if isinstance(module, nn.Linear):
            bound = (6 / (module.in_features + module.out_features)) ** 0.5
            assert 0.9 * bound < module.weight.abs().max().item() <= bound
            assert not module.bias.any()


def test_the_equinox_model_pools_with_stride_one():
    model = build("equinox-cnn", channels=1, size=(28, 28), classes=10)
    assert next(m.in_features for m in model.modules() if isinstance(m, nn.Linear)) == 30976


def test_the_simple_model_keeps_the_size():
    model = build("simple-cnn", channels=3, size=(32, 32), classes=10)
    assert next(m.in_features for m in model.modules() if isinstance(m, nn.Linear)) == 65536


@pytest.mark.parametrize("name", CHOICES["model"])
@pytest.mark.parametrize("width", [0.5, 1, 1.5])
def test_every_model_takes_any_channels_size_and_classes(name, width):
    model = build(name, channels=2, size=(20, 17), classes=3, width=width)
    assert model(torch.rand(2, 2, 20, 17)).shape == (2, 3)


@pytest.mark.parametrize("name", ["flux-cnn", "equinox-cnn", "resnet18"])
def test_too_small_an_image_is_refused_with_its_size(name):
    with pytest.raises(JobError, match="4x4"):
        build(name, channels=1, size=(4, 4), classes=10)


def test_weights_come_from_the_seed_alone():
    torch.manual_seed(1)
    before = torch.get_rng_state()
    first = build("flux-cnn", channels=1, size=(28, 28), classes=10, seed=5)
    assert torch.equal(before, torch.get_rng_state())
    torch.manual_seed(99)
    second = build("flux-cnn", channels=1, size=(28, 28), classes=10, seed=5)
    third = build("flux-cnn", channels=1, size=(28, 28), classes=10, seed=6)
    assert all(torch.equal(a, b) for a, b in zip(first.parameters(), second.parameters(), strict=True))
    assert not all(torch.equal(a, b) for a, b in zip(first.parameters(), third.parameters(), strict=True))
