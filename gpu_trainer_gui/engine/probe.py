"""The tiny training step that tells whether a device works, and a time limit for what may never come back."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Generator
from typing import TypeVar

import torch

from gpu_trainer_gui.runs.events import Progress

T = TypeVar("T")


def within(
    work: Callable[[], T], limit: float, waiting: Callable[[float, float], Progress], late: Callable[[float], T]
) -> Generator[Progress, None, T]:
    """What ``work`` returns, run in a thread of its own; ``late(limit)`` when that takes too long.

    ``waiting(seconds so far, limit)`` is yielded each second. A thread that came too late is left to itself.
    """
    answers: queue.SimpleQueue[T] = queue.SimpleQueue()
    began = time.perf_counter()
    threading.Thread(target=lambda: answers.put(work()), name="probe", daemon=True).start()
    while (left := limit - (time.perf_counter() - began)) > 0:
        try:
            return answers.get(timeout=min(1.0, left))
        except queue.Empty:
            yield waiting(time.perf_counter() - began, limit)
    return late(limit)


def training_step(device: torch.device) -> None:
    """One step of a small convolutional network, forward, backward and update. Raises what the device raises."""
    # no random numbers: a run's own must not be touched
    images = torch.linspace(-1, 1, 8 * 8 * 8).reshape(8, 1, 8, 8).to(device)
    labels = (torch.arange(8) % 2).to(device)
    weight = torch.linspace(-0.1, 0.1, 4 * 9).reshape(4, 1, 3, 3).to(device).requires_grad_()
    head = torch.linspace(-0.1, 0.1, 2 * 4 * 64).reshape(2, 4 * 64).to(device).requires_grad_()
    optimiser = torch.optim.Adam([weight, head], lr=0.01)
    features = torch.nn.functional.conv2d(images, weight, padding=1).relu().flatten(1)
    loss = torch.nn.functional.cross_entropy(torch.nn.functional.linear(features, head), labels)
    loss.backward()
    optimiser.step()
    if not bool(torch.isfinite(loss).item()) or not bool(torch.isfinite(head).all().item()):
        raise RuntimeError("a training step gave numbers that are not finite")
