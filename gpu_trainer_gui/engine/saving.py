"""Keeps a trained model: its weights as safetensors or a plain state_dict, and beside them what they are for."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import msgspec
import torch
from safetensors.torch import load_file
from safetensors.torch import save as serialised
from torch import nn

from gpu_trainer_gui import __version__
from gpu_trainer_gui.engine import models
from gpu_trainer_gui.engine.files import replacing
from gpu_trainer_gui.engine.train import Trained
from gpu_trainer_gui.runs.job import TrainingJob

SUFFIXES = (".safetensors", ".pt")


class SavingError(ValueError):
    """A model file cannot be written or read; the text names it and says why."""


class Card(msgspec.Struct, frozen=True, kw_only=True):
    """What the JSON beside the weights says: ``shape`` is (channels, height, width) of the images."""

    program: str
    job: TrainingJob
    classes: tuple[str, ...]
    shape: tuple[int, int, int]
    mean: float
    std: float
    device: str


@dataclass(frozen=True)
class Loaded:
    """A model as it was saved, on the CPU, in evaluation mode."""

    model: nn.Module
    card: Card


def card_path(path: Path) -> Path:
    """The JSON that belongs to a file of weights."""
    return path.with_suffix(".json")


def save(trained: Trained, path: Path) -> None:
    """Write the weights and their JSON. Raises SavingError for an unknown suffix, OSError when it cannot be written."""
    _check_suffix(path)
    # a compiled module's names would not fit the plain model, and safetensors wants no other memory layout
    weights = {name: tensor.detach().cpu().contiguous() for name, tensor in trained.learner.model.state_dict().items()}
    _, channels, height, width = trained.test.images.shape
    card = Card(
        program=f"gpu-trainer-gui {__version__}",
        job=trained.job,
        classes=trained.test.classes,
        shape=(channels, height, width),
        mean=trained.job.mean,
        std=trained.job.std,
        device=str(trained.learner.device),
    )
    with replacing(path) as file:
        if path.suffix == ".pt":
            torch.save(weights, file)
        else:
            file.write(serialised(weights))
    with replacing(card_path(path)) as file:
        file.write(msgspec.json.format(msgspec.json.encode(card), indent=1) + b"\n")


def load(path: Path) -> Loaded:
    """Read a model that ``save`` wrote. Raises SavingError naming the file that is missing or does not fit."""
    _check_suffix(path)
    try:
        card = msgspec.json.decode(card_path(path).read_bytes(), type=Card)
    except FileNotFoundError:
        raise SavingError(f"{card_path(path)}: is missing; it says what the weights are for") from None
    except msgspec.MsgspecError as error:
        raise SavingError(f"{card_path(path)}: {error}") from None
    channels, height, width = card.shape
    model = models.build(
        card.job.model, channels=channels, size=(height, width), classes=len(card.classes), width=card.job.width
    )
    try:
        weights = load_file(path) if path.suffix == ".safetensors" else torch.load(path, weights_only=True)
        model.load_state_dict(weights)
    except FileNotFoundError:
        raise SavingError(f"{path}: is missing") from None
    except Exception as error:  # each library has its own errors for a file that is not what it claims
        raise SavingError(f"{path}: {str(error).splitlines()[0]}") from None
    return Loaded(model.eval(), card)


def _check_suffix(path: Path) -> None:
    if path.suffix not in SUFFIXES:
        raise SavingError(f"{path.name}: must end in {' or '.join(SUFFIXES)}")
