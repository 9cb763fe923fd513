"""Reading time honestly: synchronise, then read the clock."""

from __future__ import annotations

import time

import torch


def synchronise(device: torch.device) -> None:
    """Wait until everything launched on the device has run; on the CPU there is nothing to wait for."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    elif device.type != "cpu":
        torch.accelerator.synchronize(device)


class RunClock:
    """Seconds since the run's start on one monotonic clock."""

    def __init__(self) -> None:
        self._start = time.perf_counter()

    def now(self) -> float:
        return time.perf_counter() - self._start

    def of(self, reading: float) -> float:
        """A ``time.perf_counter()`` reading as seconds since the run's start."""
        return reading - self._start


class Stopwatch:
    """Adds up spans of time whose both ends wait for the device.

    ``seconds`` is by the host's clock; ``device_seconds`` by the device's own events on CUDA, else None.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._on_cuda = device.type == "cuda"
        self.seconds = 0.0
        self.device_seconds: float | None = 0.0 if self._on_cuda else None

    def start(self) -> None:
        synchronise(self._device)
        if self._on_cuda:
            self._from = self._mark()
        self._began = time.perf_counter()

    def stop(self) -> None:
        until = self._mark() if self._on_cuda else None
        synchronise(self._device)
        self.seconds += time.perf_counter() - self._began
        if until is not None and self.device_seconds is not None:
            self.device_seconds += self._from.elapsed_time(until) / 1000

    def _mark(self) -> torch.cuda.Event:
        event = torch.cuda.Event(enable_timing=True)
        event.record(torch.cuda.current_stream(self._device))
        return event
