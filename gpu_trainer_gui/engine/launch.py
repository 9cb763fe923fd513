"""How an epoch's steps are launched: one operation after another, or each step as one CUDA graph.

An iteration yields (loss, images) a batch: the loss is a scalar tensor on the device that nobody has looked at, or
None when the graph has written it into the tape's buffer.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from gpu_trainer_gui.engine.batches import Feed, ResidentFeed, sizes
from gpu_trainer_gui.engine.learner import Learner
from gpu_trainer_gui.engine.losses import LossTape

Step = tuple[torch.Tensor | None, int]


class EagerEpochs:
    """Every operation of every step is launched by Python. ``accumulate`` batches share one update."""

    def __init__(self, learner: Learner, feed: Feed) -> None:
        self.needs_warm_up = learner.job.launch == "compiled"
        self.warm = self.needs_warm_up or learner.job.warm_up_steps > 0
        self._learner = learner
        self._feed = feed
        self._accumulate = learner.job.accumulate

    def epoch(self, order: torch.Tensor) -> Iterator[Step]:
        if self._accumulate == 1:
            for images, labels in self._feed.epoch(order):
                yield self._learner.learn(images, labels), len(labels)
        else:
            yield from self._accumulating(order)

    def _accumulating(self, order: torch.Tensor) -> Iterator[Step]:
        """Groups of batches; each loss is weighted by its share of the group, so the update is a big batch's."""
        learner = self._learner
        counts = sizes(len(order), learner.job.batch_size)
        for number, (images, labels) in enumerate(self._feed.epoch(order)):
            place = number % self._accumulate
            if place == 0:
                learner.forget_gradients()
                group = sum(counts[number : number + self._accumulate])
            loss = learner.forward(images, labels)
            learner.backward(loss * (len(labels) / group))
            if place == self._accumulate - 1 or number == len(counts) - 1:
                learner.update()
            yield loss.detach(), len(labels)

    def warm_up(self, order: torch.Tensor, steps: int) -> None:
        """Run a few steps, the epoch's short last batch among them, so that its kernels are chosen too."""
        batch = self._learner.job.batch_size
        short = len(order) % batch
        full = min(steps * self._accumulate, len(order) // batch)
        for _ in self.epoch(order[: full * batch + short]):
            pass


class GraphEpochs:
    """The whole step, gathering its batch included, is captured once and replayed with a single launch.

    A counter on the device tells the step which batch it is; the short last batch has a graph of its own.
    """

    needs_warm_up = True
    warm = True

    def __init__(self, learner: Learner, feed: ResidentFeed, tape: LossTape) -> None:
        self._learner = learner
        self._table = feed.table
        self._tape = tape
        device, count = learner.device, len(feed.table)
        self._batch = learner.job.batch_size
        self._full, self._short = divmod(count, self._batch)
        self._order = torch.arange(count, device=device)
        self._number = torch.zeros(1, dtype=torch.int64, device=device)
        self._lane = torch.arange(self._batch, device=device)
        self._graphs: list[torch.cuda.CUDAGraph] = []

    def _full_step(self) -> None:
        index = self._order.index_select(0, self._number * self._batch + self._lane)
        loss = self._learner.learn(*self._table.batch(index))
        self._tape.buffer.index_copy_(0, self._number, loss.reshape(1).float())
        self._number.add_(1)

    def _short_step(self) -> None:
        loss = self._learner.learn(*self._table.batch(self._order[self._full * self._batch :]))
        self._tape.buffer[-1:].copy_(loss.reshape(1))

    def warm_up(self, order: torch.Tensor, steps: int) -> None:
        """Run each kind of step on a side stream, as capture demands, then capture it."""
        kinds = [step for step, wanted in ((self._full_step, self._full), (self._short_step, self._short)) if wanted]
        device = self._learner.device
        self._order.copy_(order)
        side = torch.cuda.Stream(device)
        side.wait_stream(torch.cuda.current_stream(device))
        with torch.cuda.stream(side):
            for step in kinds:
                for _ in range(max(steps, 3)):
                    self._number.zero_()
                    step()
        torch.cuda.current_stream(device).wait_stream(side)
        pool = None
        for step in kinds:
            self._learner.forget_gradients()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, pool=pool):
                step()
            pool = graph.pool()
            self._graphs.append(graph)

    def epoch(self, order: torch.Tensor) -> Iterator[Step]:
        self._order.copy_(order, non_blocking=True)
        self._number.zero_()
        if self._full:
            replay = self._graphs[0].replay
            for _ in range(self._full):
                replay()
                yield None, self._batch
        if self._short:
            self._graphs[-1].replay()
            yield None, self._short


Epochs = EagerEpochs | GraphEpochs


def epochs_for(learner: Learner, feed: Feed, tape: LossTape) -> Epochs:
    """The way of launching that the job names and its feed allows."""
    if learner.captured and isinstance(feed, ResidentFeed):
        return GraphEpochs(learner, feed, tape)
    return EagerEpochs(learner, feed)
