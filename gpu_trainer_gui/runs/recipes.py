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
    )
}
DEFAULT = "flux-mnist"


def recipe(name: str) -> Recipe:
    """The recipe of that name; JobError names those that exist."""
    try:
        return RECIPES[name]
    except KeyError:
        raise JobError("recipe", f"must be one of {', '.join(RECIPES)}, not {name!r}") from None
