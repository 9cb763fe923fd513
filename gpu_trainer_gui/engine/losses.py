"""Losses stay on the device and come back in slices by asynchronous copy: reading one a batch would stall it."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

import torch

# A CPU run pays for every wake-up of the window with all its threads waiting at the next barrier, so slices are few.
SLICE_SECONDS_CPU = 0.25
SLICE_SECONDS_GPU = 1 / 30


@dataclass(slots=True)
class Slice:
    """The losses of ``count`` consecutive batches, ``first`` counted within the epoch, on their way to the host."""

    first: int
    images: int
    values: torch.Tensor
    arrived: torch.cuda.Event | None
    ended: float = field(default=0.0)

    def ready(self) -> bool:
        return self.arrived is None or self.arrived.query()

    def wait(self) -> None:
        if self.arrived is not None:
            self.arrived.synchronize()


class LossTape:
    """Collects a loss a batch without looking at it; hands out slices that have arrived.

    ``note(loss, images)`` takes a scalar tensor on the device, or None when the step itself writes into ``buffer``
    (a float32 tensor of one element a batch of the epoch), as a captured step does.
    """

    def __init__(self, device: torch.device, batches_per_epoch: int) -> None:
        self.device = device
        self.interval = SLICE_SECONDS_CPU if device.type == "cpu" else SLICE_SECONDS_GPU
        self.buffer = torch.zeros(batches_per_epoch, dtype=torch.float32, device=device)
        self._open: list[torch.Tensor] = []
        self._first = 0
        self._count = 0
        self._images = 0
        self._due = 0.0
        self._under_way: list[Slice] = []

    def start_epoch(self) -> None:
        self._open.clear()
        self._first = self._count = self._images = 0
        self._due = time.perf_counter() + self.interval

    def note(self, loss: torch.Tensor | None, images: int) -> bool:
        """Take one batch; True when a slice is due."""
        if loss is not None:
            self._open.append(loss)
        self._count += 1
        self._images += images
        return time.perf_counter() >= self._due

    def cut(self) -> None:
        """Send what was collected on its way to the host. Nothing waits."""
        self._due = time.perf_counter() + self.interval
        if not self._count:
            return
        if self._open:
            values = torch.stack(self._open).float()
        else:
            values = self.buffer[self._first : self._first + self._count]
        arrived = None
        if self.device.type == "cuda":
            host = torch.empty(self._count, dtype=torch.float32, pin_memory=True)
            host.copy_(values, non_blocking=True)
            arrived = torch.cuda.Event()
            arrived.record(torch.cuda.current_stream(self.device))
            values = host
        self._under_way.append(Slice(self._first, self._images, values, arrived))
        self._first += self._count
        self._count = self._images = 0
        self._open.clear()

    def arrived(self, *, at_most_under_way: int = 1) -> list[Slice]:
        """The slices that are on the host, in order.

        With more than ``at_most_under_way`` still travelling the oldest is waited for, so that the host never runs
        far ahead of the device: a stop is then felt at once, and what is shown has run.
        """
        done = []
        while self._under_way and (self._under_way[0].ready() or len(self._under_way) > at_most_under_way):
            first = self._under_way.pop(0)
            first.wait()
            first.ended = time.perf_counter()
            done.append(first)
        return done

    def rest(self) -> list[Slice]:
        """Everything not handed out yet, waited for."""
        self.cut()
        return self.arrived(at_most_under_way=0)
