"""Before a run: how much memory it will take, from two small measurements on the device, fitted as a + b x batch."""

from __future__ import annotations

import gc
from dataclasses import dataclass

import msgspec
import torch

from gpu_trainer_gui.engine import models
from gpu_trainer_gui.engine.imageset import ImageSet
from gpu_trainer_gui.engine.learner import Learner, set_precision
from gpu_trainer_gui.runs.events import MemoryEstimated
from gpu_trainer_gui.runs.job import RANGES, JobError, TrainingJob

PROBES = (16, 64)
# What the fit does not see: fragments of segments, and workspaces that grow in steps.
MARGIN = 1.05


@dataclass(frozen=True)
class Shape:
    """What of a data set decides memory: image channels, height, width, number of classes, and how many images."""

    channels: int
    height: int
    width: int
    classes: int
    images: int

    @classmethod
    def of(cls, images: ImageSet) -> Shape:
        count, channels, height, width = images.images.shape
        return cls(channels, height, width, len(images.classes), count)

    def table_bytes(self) -> int:
        """The set as a resident table: float32 pixels and an int64 label an image."""
        return self.images * (self.channels * self.height * self.width * 4 + 8)


_measured: dict[bytes, tuple[int, float]] = {}


def estimate(job: TrainingJob, device: torch.device, train: Shape, test: Shape) -> MemoryEstimated:
    """What the job would take on a CUDA device at its peak, without running it.

    Raises JobError when the model cannot take the images, torch.OutOfMemoryError when not even the probes fit.
    """
    if device.type != "cuda":
        raise JobError("device", f"memory can be estimated for CUDA devices, not for {device}")
    fixed, per_image = _fit(job, device, train)
    fixed += test.table_bytes() + (train.table_bytes() if job.input == "resident" else 0)
    free, total = torch.cuda.mem_get_info(device)
    free += torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    room = free / MARGIN - fixed
    largest = min(int(room / per_image), int(RANGES["batch_size"].high), train.images) if room > 0 else 0
    batch = min(job.batch_size, train.images)
    return MemoryEstimated(
        device=str(device),
        batch_size=job.batch_size,
        fixed=fixed,
        per_image=per_image,
        needed=int(fixed + per_image * batch),
        free=free,
        total=total,
        largest_batch=largest or None,
    )


def _fit(job: TrainingJob, device: torch.device, shape: Shape) -> tuple[int, float]:
    """Bytes at batch 0 and bytes an image, measured once a model, precision, launch and device."""
    names = ("model", "width", "precision", "channels_last", "optimiser", "fused", "launch")
    parts = [getattr(job, name) for name in names]
    key = msgspec.json.encode([*parts, str(device), shape.channels, shape.height, shape.width, shape.classes])
    if key not in _measured:
        low, high = (_peak(job, device, shape, batch) for batch in PROBES)
        slope = max(0.0, (high - low) / (PROBES[1] - PROBES[0]))
        _measured[key] = max(0, round(low - slope * PROBES[0])), slope
    return _measured[key]


def _peak(job: TrainingJob, device: torch.device, shape: Shape, batch: int) -> int:
    """The allocator's peak over two real steps on random images, over what it held before."""
    set_precision(job)
    gc.collect()
    torch.cuda.empty_cache()
    before = torch.cuda.memory_allocated(device)
    torch.cuda.reset_peak_memory_stats(device)
    # compiling would take far longer than the run it is asked for; its memory is that of the plain step or less
    eager = job.replace(launch="eager")
    size = (shape.height, shape.width)
    model = models.build(
        job.model, channels=shape.channels, size=size, classes=shape.classes, width=job.width, seed=job.seed
    )
    learner = Learner(model, eager, device)
    images = torch.rand(batch, shape.channels, *size, device=device)
    if job.channels_last:
        images = images.contiguous(memory_format=torch.channels_last)
    labels = torch.zeros(batch, dtype=torch.int64, device=device)
    for _ in range(2):
        learner.learn(images, labels)
    torch.cuda.synchronize(device)
    peak = torch.cuda.max_memory_allocated(device) - before
    del learner, model, images, labels
    gc.collect()
    torch.cuda.empty_cache()
    return peak
