"""Where a step's time goes: data, copy, forward, backward, optimiser, on extra steps outside the timed epochs."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from itertools import pairwise

import torch

from gpu_trainer_gui.engine.batches import Feed, order_of_epoch
from gpu_trainer_gui.engine.clock import synchronise
from gpu_trainer_gui.engine.learner import Learner, Snapshot
from gpu_trainer_gui.runs.events import StepAnatomy

PARTS = ("data", "copy", "forward", "backward", "optimiser")
_STEPS = 12
_STALL_CYCLES = 20_000_000


def dissect(learner: Learner, feed: Feed, images: int, at: float, check: Callable[[], None]) -> StepAnatomy | None:
    """The median seconds of each part, and the weights as they were; None when there is not one full batch.

    Launched one operation after another, a part's time runs from synchronised clock to synchronised clock. For a
    captured step the launches cost nothing, so there the parts are timed by the device's events behind a stalled
    queue, which leaves the kernels' own time.
    """
    batch = learner.job.batch_size
    steps = min(_STEPS, images // batch)
    if not steps:
        return None
    before = Snapshot(learner)
    order = order_of_epoch(images, learner.job.seed, 0)[: steps * batch]
    one_step = _by_events if learner.captured else _by_clock
    try:
        found = []
        batches = feed.prepared(order)
        for _ in range(steps):
            check()
            found.append(one_step(learner, feed, batches))
    finally:
        before.restore()
    medians = (statistics.median(step[part] for step in found) for part in range(len(PARTS)))
    return StepAnatomy(at=at, steps=steps, **dict(zip(PARTS, medians, strict=True)))


def _by_clock(learner: Learner, feed: Feed, batches: Iterator[tuple[torch.Tensor, torch.Tensor]]) -> list[float]:
    marks = []

    def mark() -> None:
        synchronise(learner.device)
        marks.append(time.perf_counter())

    _one_step(learner, feed, batches, mark)
    return [after - before for before, after in pairwise(marks)]


def _by_events(learner: Learner, feed: Feed, batches: Iterator[tuple[torch.Tensor, torch.Tensor]]) -> list[float]:
    marks: list[torch.cuda.Event] = []

    def mark() -> None:
        event = torch.cuda.Event(enable_timing=True)
        event.record(torch.cuda.current_stream(learner.device))
        marks.append(event)

    # While the device idles in this stall the host queues the whole step; its kernels then follow each other closely.
    torch.cuda._sleep(_STALL_CYCLES)
    _one_step(learner, feed, batches, mark)
    synchronise(learner.device)
    return [before.elapsed_time(after) / 1000 for before, after in pairwise(marks)]


def _one_step(
    learner: Learner, feed: Feed, batches: Iterator[tuple[torch.Tensor, torch.Tensor]], mark: Callable[[], None]
) -> None:
    mark()
    batch = next(batches)
    mark()
    images, labels = feed.copied(batch)
    mark()
    learner.forget_gradients()
    loss = learner.forward(images, labels)
    mark()
    learner.backward(loss)
    mark()
    learner.update()
    mark()
