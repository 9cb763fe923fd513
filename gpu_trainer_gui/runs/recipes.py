"""The named jobs that a user starts from; every number in them can be edited."""

from __future__ import annotations

import msgspec

from gpu_trainer_gui.runs.job import JobError, TrainingJob


class Recipe(msgspec.Struct, frozen=True, kw_only=True):
    """A job with a name a person can pick; ``wants`` is the data set the published exercise uses."""

    name: str
    title: str
    wants: str
    job: TrainingJob


RECIPES: dict[str, Recipe] = {
    recipe.name: recipe
    for recipe in (
        Recipe(
            name="flux-mnist",
            title="Flux MNIST: a small convolutional network",
            wants="mnist",
            job=TrainingJob(recipe="flux-mnist"),
        ),
        Recipe(
            name="equinox-mnist",
            title="Equinox MNIST: wider layers, a hundred steps",
            wants="mnist",
            job=TrainingJob(
                recipe="equinox-mnist",
                model="equinox-cnn",
                train_images=None,
                test_images=None,
                mean=0.5,
                std=0.5,
                batch_size=64,
                epochs=2,
                max_steps=100,
                evaluate_every=10,
                optimiser="adamw",
                learning_rate=0.0003,
                weight_decay=0.0001,
                seed=5678,
            ),
        ),
        Recipe(
            name="simplecnn-cifar10",
            title="SimpleCNN CIFAR-10: two convolutions and eight million weights",
            wants="cifar10",
            job=TrainingJob(
                recipe="simplecnn-cifar10",
                model="simple-cnn",
                train_images=None,
                test_images=None,
                mean=0.5,
                std=0.5,
                batch_size=64,
                epochs=10,
            ),
        ),
        Recipe(
            name="resnet18-cifar10",
            title="ResNet-18 CIFAR-10: a model that keeps a GPU busy",
            wants="cifar10",
            job=TrainingJob(
                recipe="resnet18-cifar10",
                model="resnet18",
                train_images=None,
                test_images=None,
                mean=0.5,
                std=0.5,
                batch_size=128,
                epochs=5,
            ),
        ),
    )
}
DEFAULT = "flux-mnist"


def recipe(name: str) -> Recipe:
    """The recipe of that name; JobError names those that exist."""
    try:
        return RECIPES[name]
    except KeyError:
        raise JobError("recipe", f"must be one of {', '.join(RECIPES)}, not {name!r}") from None
