"""Feeds batches to the step in the four ways of the job's ``input``: script, tensors, pinned, resident.

All four give the same images in the same order; what differs is who prepares them, where they lie, and when they
are copied. Labels are int64, images float32 of shape (batch, channels, height, width).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset, Sampler, TensorDataset

from gpu_trainer_gui.engine.datasets import ImageSet
from gpu_trainer_gui.runs.job import TrainingJob

Batch = tuple[torch.Tensor, torch.Tensor]


def sizes(images: int, batch: int) -> list[int]:
    """The sizes of an epoch's batches; the last one may be short and is trained too."""
    return [min(batch, images - first) for first in range(0, images, batch)]


def order_of_epoch(images: int, seed: int, epoch: int) -> torch.Tensor:
    """The epoch's shuffled order, int64 on the CPU: the same for every device and every way of feeding."""
    generator = torch.Generator().manual_seed(seed * 1_000_003 + epoch)
    return torch.randperm(images, generator=generator)


def normalised(images: torch.Tensor, mean: float, std: float) -> torch.Tensor:
    """uint8 pixels as float32: scaled to [0, 1], then (x - mean) / std."""
    pixels = images.to(torch.float32).div_(255)
    return pixels if (mean, std) == (0.0, 1.0) else pixels.sub_(mean).div_(std)


class Table:
    """A whole image set on one device, a row an image, ready to be gathered into batches.

    With channels_last the rows are stored in that order, so that a gathered batch already has the layout.
    """

    def __init__(self, images: ImageSet, job: TrainingJob, device: torch.device) -> None:
        pixels = normalised(images.images.to(device), job.mean, job.std)
        self.shape = tuple(pixels.shape[1:])
        self.channels_last = job.channels_last
        if self.channels_last:
            pixels = pixels.permute(0, 2, 3, 1).contiguous()
        self.rows = pixels.reshape(len(pixels), -1)
        self.labels = images.labels.to(device)

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def nbytes(self) -> int:
        return self.rows.nbytes + self.labels.nbytes

    def shaped(self, rows: torch.Tensor) -> torch.Tensor:
        """Gathered rows as images (batch, channels, height, width), without a copy."""
        channels, height, width = self.shape
        if self.channels_last:
            return rows.view(-1, height, width, channels).permute(0, 3, 1, 2)
        return rows.view(-1, channels, height, width)

    def batch(self, index: torch.Tensor) -> Batch:
        """The images and labels at ``index`` (int64 on the same device)."""
        return self.shaped(self.rows.index_select(0, index)), self.labels.index_select(0, index)

    def span(self, first: int, count: int) -> Batch:
        """Consecutive images, without a copy."""
        return self.shaped(self.rows[first : first + count]), self.labels[first : first + count]


class ResidentFeed:
    """The whole set lies on the device; a batch is a gather there."""

    def __init__(self, images: ImageSet, job: TrainingJob, device: torch.device) -> None:
        self.table = Table(images, job, device)
        self._batch = job.batch_size
        self._device = device

    @property
    def data_bytes(self) -> int:
        return self.table.nbytes

    def prepared(self, order: torch.Tensor) -> Iterator[Batch]:
        """The epoch's batches as they are before they are copied: here they are gathered on the device."""
        for index in order.to(self._device).split(self._batch):
            yield self.table.batch(index)

    def copied(self, batch: Batch) -> Batch:
        """The batch on the device, where it is already."""
        return batch

    def epoch(self, order: torch.Tensor) -> Iterator[Batch]:
        return self.prepared(order)

    def close(self) -> None:
        pass


class _OrderSampler(Sampler[int]):
    """Hands the order of the epoch to a DataLoader, so that its workers can outlive the epoch."""

    def __init__(self, count: int) -> None:
        self.order = list(range(count))

    def __iter__(self) -> Iterator[int]:
        return iter(self.order)

    def __len__(self) -> int:
        return len(self.order)


class _PilImages(Dataset[Any]):
    """Images as a tutorial has them: PIL images, turned into a normalised tensor one by one by transforms."""

    def __init__(self, images: ImageSet, job: TrainingJob) -> None:
        from torchvision import transforms

        steps: list[Any] = [transforms.ToTensor()]
        if (job.mean, job.std) != (0.0, 1.0):
            channels = images.images.shape[1]
            steps.append(transforms.Normalize((job.mean,) * channels, (job.std,) * channels))
        self._transform = transforms.Compose(steps)
        array = images.images.permute(0, 2, 3, 1).contiguous().numpy()
        self._pixels = array[..., 0] if array.shape[-1] == 1 else array
        self._labels = images.labels.tolist()

    def __len__(self) -> int:
        return len(self._labels)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        from PIL import Image

        return self._transform(Image.fromarray(self._pixels[index])), self._labels[index]


class LoaderFeed:
    """A DataLoader: over PIL images with transforms (script), over tensors, or over pinned tensors with workers."""

    def __init__(self, images: ImageSet, job: TrainingJob, device: torch.device) -> None:
        self._device = device
        self._channels_last = job.channels_last
        self._pinned = job.input == "pinned"
        dataset: Dataset[Any]
        if job.input == "script":
            dataset = _PilImages(images, job)
        else:
            dataset = TensorDataset(normalised(images.images, job.mean, job.std), images.labels)
        self._sampler = _OrderSampler(len(images.labels))
        # Workers are spawned: by now CUDA is initialised here, and a forked child could not use it. They live from
        # epoch to epoch, since starting them takes seconds where processes cannot be forked.
        self._loader: DataLoader[Any] = DataLoader(
            dataset,
            batch_size=job.batch_size,
            sampler=self._sampler,
            num_workers=job.workers,
            pin_memory=self._pinned,
            persistent_workers=job.workers > 0,
            multiprocessing_context="spawn" if job.workers else None,
        )

    @property
    def data_bytes(self) -> None:
        return None

    def prepared(self, order: torch.Tensor) -> Iterator[Batch]:
        """The epoch's batches as the loader makes them, on the host."""
        self._sampler.order = order.tolist()
        yield from self._loader

    def copied(self, batch: Batch) -> Batch:
        """The batch on the device."""
        images, labels = batch
        images = images.to(self._device, non_blocking=self._pinned)
        if self._channels_last:
            images = images.contiguous(memory_format=torch.channels_last)
        return images, labels.to(self._device, non_blocking=self._pinned)

    def epoch(self, order: torch.Tensor) -> Iterator[Batch]:
        return map(self.copied, self.prepared(order))

    def close(self) -> None:
        iterator = getattr(self._loader, "_iterator", None)
        if iterator is not None:
            self._loader._iterator = None
            iterator._shutdown_workers()


Feed = ResidentFeed | LoaderFeed


def feed_for(images: ImageSet, job: TrainingJob, device: torch.device) -> Feed:
    """The feed that the job's ``input`` names."""
    return ResidentFeed(images, job, device) if job.input == "resident" else LoaderFeed(images, job, device)
