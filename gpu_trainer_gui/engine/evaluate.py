"""Judges a model on the whole test set, and shows what it sees in a few images. Always outside the timed epochs."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

import torch
from torch import nn

from gpu_trainer_gui.engine.batches import Table
from gpu_trainer_gui.engine.clock import synchronise
from gpu_trainer_gui.engine.datasets import ImageSet
from gpu_trainer_gui.engine.learner import Learner
from gpu_trainer_gui.runs.events import Evaluated, Predicted, SamplesShown

SHOWN = 24


def judged_at_once(batch_size: int) -> int:
    """How many test images go through the model at once: never so many that judging takes more memory than training,
    which keeps each layer's output for the backward pass."""
    return max(16, min(512, 2 * batch_size))


def finite(value: float) -> float | None:
    """None for NaN and infinities, which JSON cannot carry."""
    return value if math.isfinite(value) else None


def evaluate(
    learner: Learner, test: Table, *, at: Callable[[], float], epoch: int, step: int, check: Callable[[], None]
) -> Evaluated:
    """Mean cross-entropy and accuracy over the whole test set; ``check`` is called each batch and may raise."""
    began = time.perf_counter()
    loss_sum = torch.zeros((), device=learner.device)
    right = torch.zeros((), dtype=torch.int64, device=learner.device)
    count = judged_at_once(learner.job.batch_size)
    for first in range(0, len(test), count):
        check()
        images, labels = test.span(first, count)
        logits = learner.logits(images)
        loss_sum += nn.functional.cross_entropy(logits, labels, reduction="sum")
        right += (logits.argmax(1) == labels).sum()
    synchronise(learner.device)
    return Evaluated(
        epoch=epoch,
        step=step,
        test_loss=finite(loss_sum.item() / len(test)),
        accuracy=right.item() / len(test),
        seconds=time.perf_counter() - began,
        images=len(test),
        at=at(),
    )


def _pixels(test: ImageSet, count: int) -> tuple[bytes, tuple[int, int, int, int]]:
    few = test.images[:count].contiguous()
    count, channels, height, width = few.shape
    return few.numpy().tobytes(), (count, channels, height, width)


def samples(test: ImageSet, at: float, count: int = SHOWN) -> SamplesShown:
    """The first images of the test set with their labels."""
    pixels, shape = _pixels(test, count)
    labels = tuple(test.labels[:count].tolist())
    return SamplesShown(at=at, pixels=pixels, shape=shape, labels=labels, classes=test.classes)


def predict(learner: Learner, table: Table, test: ImageSet, at: float, count: int = SHOWN) -> Predicted:
    """What the model takes the first images of the test set for, fetched back to the CPU."""
    pixels, shape = _pixels(test, count)
    images, _ = table.span(0, shape[0])
    confidences, predictions = learner.logits(images).softmax(1).max(1)
    return Predicted(
        at=at,
        pixels=pixels,
        shape=shape,
        labels=tuple(test.labels[:count].tolist()),
        predictions=tuple(predictions.tolist()),
        confidences=tuple(finite(value) or 0.0 for value in confidences.tolist()),
        classes=test.classes,
    )
