"""The job's fields as command-line options, with their ranges from runs/job.py."""

from __future__ import annotations

import argparse

import msgspec

from gpu_trainer_gui.runs.job import CHOICES, RANGES, JobError, TrainingJob
from gpu_trainer_gui.runs.recipes import DEFAULT, RECIPES, recipe

_HELP = {
    "train_images": "how many training images to use; 'all' for the whole set",
    "test_images": "how many test images to judge by; 'all' for the whole set",
    "mean": "subtracted from pixels scaled to [0, 1]",
    "std": "pixels are divided by it",
    "batch_size": "images a step",
    "epochs": "passes over the training images",
    "max_steps": "stop after so many optimiser steps (0: no limit)",
    "evaluate_every": "also judge every so many steps (0: after each epoch only)",
    "learning_rate": "the optimiser's step size",
    "weight_decay": "how strongly weights are pulled to zero",
    "seed": "decides the first weights and the order of the images",
    "width": "multiplies every layer's channels",
    "workers": "processes that prepare batches (script, tensors and pinned input)",
    "accumulate": "batches that share one optimiser step",
    "cpu_threads": "threads for CPU training (0: as many as the machine offers)",
    "warm_up_steps": "untimed steps before the clock starts",
    "model": "which network",
    "optimiser": "which update rule",
    "input": "who prepares batches and where the data lies",
    "precision": "number format of the arithmetic",
    "launch": "how a step's operations are started",
}


def _number(name: str, text: str) -> int | float | None:
    allowed = RANGES[name]
    if name in ("train_images", "test_images") and text == "all":
        return None
    try:
        return int(text) if allowed.whole else float(text)
    except ValueError:
        kind = "a whole number" if allowed.whole else "a number"
        raise JobError(name, f"must be {kind} from {allowed.low:,g} to {allowed.high:,g}, not {text!r}") from None


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add ``--recipe``, ``--devices``, ``--data``, ``--test-data`` and one option a knob."""
    parser.add_argument("--recipe", metavar="NAME", help=f"one of {', '.join(RECIPES)} (default {DEFAULT})")
    parser.add_argument("--devices", metavar="LIST", help="cpu, cuda:0, … separated by commas (default: all usable)")
    parser.add_argument("--data", metavar="NAME", help="digits (built in), mnist, …, or a path to a folder")
    parser.add_argument("--test-data", metavar="NAME", help="judge by another set's test images")
    knobs = parser.add_argument_group("knobs of the job (defaults: the recipe's)")
    for field in msgspec.structs.fields(TrainingJob):
        option = "--" + field.name.replace("_", "-")
        text = _HELP.get(field.name)
        if field.name in RANGES:
            allowed = RANGES[field.name]
            knobs.add_argument(option, metavar="N", help=f"{text}; {allowed.low:,g} to {allowed.high:,g}")
        elif field.name in CHOICES:
            knobs.add_argument(option, metavar="NAME", help=f"{text}: {', '.join(CHOICES[field.name])}")
    knobs.add_argument("--channels-last", action=argparse.BooleanOptionalAction, help="images stored pixel by pixel")
    knobs.add_argument("--fused", action=argparse.BooleanOptionalAction, help="the optimiser's update in one kernel")


def job_from(options: argparse.Namespace) -> TrainingJob:
    """The recipe's job with the options' changes. Raises JobError naming the first field that is wrong."""
    job = recipe(options.recipe or DEFAULT).job
    changes: dict[str, object] = {}
    for field in msgspec.structs.fields(TrainingJob):
        given = getattr(options, field.name, None)
        if given is None or field.name == "recipe":
            continue
        changes[field.name] = _number(field.name, given) if field.name in RANGES else given
    job = job.replace(**changes)
    job.check()
    return job


def devices_from(text: str | None, usable: list[str]) -> list[str]:
    """The devices named in ``--devices``, each once, in order; all usable ones when nothing is named."""
    if text is None:
        return usable
    names = [name.strip() for name in text.split(",") if name.strip()]
    if not names:
        raise JobError("devices", "must name at least one device, as in cpu,cuda:0")
    return list(dict.fromkeys("cuda:0" if name == "cuda" else name for name in names))
