"""Reads how much memory a run takes, as often as it costs nothing to ask."""

from __future__ import annotations

import psutil
import torch

from gpu_trainer_gui.runs.events import MemorySampled


class MemoryMeter:
    """Reads memory for one device. On the CPU only the process's own resident memory is known."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._process = psutil.Process()
        self._host_peak = 0
        if device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(device)

    def sample(self, at: float, phase: str = "") -> MemorySampled:
        """The figures now. Costs about 0.1 ms on CUDA, so it is called a few times a second, not each batch."""
        rss = self._process.memory_info().rss
        self._host_peak = max(self._host_peak, rss)
        if self._device.type != "cuda":
            return MemorySampled(at=at, host_rss=rss, phase=phase)
        free, total = torch.cuda.mem_get_info(self._device)
        stats = torch.cuda.memory_stats(self._device)
        return MemorySampled(
            at=at,
            allocated=stats.get("allocated_bytes.all.current", 0),
            reserved=stats.get("reserved_bytes.all.current", 0),
            peak=stats.get("allocated_bytes.all.peak", 0),
            device_used=total - free,
            device_total=total,
            host_rss=rss,
            phase=phase,
        )

    def peak(self) -> int | None:
        """The most memory the run took: the allocator's peak on CUDA, the process's largest sample on the CPU."""
        if self._device.type == "cuda":
            return torch.cuda.max_memory_allocated(self._device)
        return self._host_peak or None


def release(device: torch.device) -> None:
    """Give cached memory back to the card."""
    if device.type == "cuda":
        torch.cuda.empty_cache()
