"""Compares ways of training the same model on the same data, in one process, epoch by epoch in turn.

    python tests/benchmarks/loops.py --work flux --devices cpu,cuda:0 --rounds 7

The contenders: the tutorials' script (PIL transforms in a DataLoader, ``.item()`` a batch), a loop over tensors that
logs each batch to TensorBoard under tqdm, Lightning's Trainer (both where installed), a DataLoader over tensors, the
data resident on the device in a plain eager loop, and this program's engine in each launch mode. Every round trains
one epoch with each contender; the table gives medians and ratios within the run. Images are random: only their shape
matters to speed.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from gpu_trainer_gui.engine.datasets import ImageSet
from rich.console import Console
from rich.table import Table
from torch import nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

from gpu_trainer_gui.engine import models, train
from gpu_trainer_gui.engine.batches import normalised
from gpu_trainer_gui.engine.clock import synchronise
from gpu_trainer_gui.engine.learner import set_precision
from gpu_trainer_gui.runs.environment import Device, Environment
from gpu_trainer_gui.runs.events import EpochDone, RunFailed
from gpu_trainer_gui.runs.job import TrainingJob, unsupported


@dataclass(frozen=True)
class Work:
    """What is trained: a model on images of one shape."""

    job: TrainingJob
    channels: int
    size: int
    images: int


WORKS = {
    "flux": Work(TrainingJob(train_images=5000), 1, 28, 5000),
    "simplecnn": Work(
        TrainingJob(model="simple-cnn", batch_size=64, mean=0.5, std=0.5, train_images=50_000), 3, 32, 50_000
    ),
}


def random_set(work: Work) -> ImageSet:
    generator = torch.Generator().manual_seed(0)
    shape = (work.images, work.channels, work.size, work.size)
    images = torch.randint(0, 256, shape, dtype=torch.uint8, generator=generator)
    labels = torch.randint(0, 10, (work.images,), generator=generator)
    return ImageSet("random", images, labels, tuple("0123456789"))


class PilImages(Dataset):
    def __init__(self, data: ImageSet, job: TrainingJob) -> None:
        from torchvision import transforms

        steps = [transforms.ToTensor()]
        if job.std != 1:
            steps.append(transforms.Normalize((job.mean,) * data.images.shape[1], (job.std,) * data.images.shape[1]))
        self.transform = transforms.Compose(steps)
        array = data.images.permute(0, 2, 3, 1).contiguous().numpy()
        self.pixels = array[..., 0] if array.shape[-1] == 1 else array
        self.labels = data.labels.tolist()

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        from PIL import Image

        return self.transform(Image.fromarray(self.pixels[index])), self.labels[index]


def fresh(work: Work, device: torch.device) -> tuple[nn.Module, torch.optim.Optimizer]:
    size = (work.size, work.size)
    model = models.build(work.job.model, channels=work.channels, size=size, classes=10, seed=1).to(device)
    return model, torch.optim.Adam(model.parameters(), lr=work.job.learning_rate)


def timed(device: torch.device, epoch: Callable[[], None]) -> Iterator[float]:
    """Seconds of one epoch after another, for ever."""
    while True:
        synchronise(device)
        began = time.perf_counter()
        epoch()
        synchronise(device)
        yield time.perf_counter() - began


def loader_loop(
    work: Work, data: ImageSet, device: torch.device, dataset: Dataset, after: Callable[[float, int], None]
) -> Iterator[float]:
    """The loop of the tutorials: zero_grad, forward, backward, step, and the loss read each batch."""
    model, optimiser = fresh(work, device)
    loader = DataLoader(dataset, batch_size=work.job.batch_size, shuffle=True)
    count = 0

    def epoch() -> None:
        nonlocal count
        for images, labels in loader:
            images, labels = images.to(device), labels.to(device)
            optimiser.zero_grad()
            loss = nn.functional.cross_entropy(model(images), labels)
            loss.backward()
            optimiser.step()
            count += 1
            after(loss.item(), count)

    return timed(device, epoch)


def script(work: Work, data: ImageSet, device: torch.device) -> Iterator[float]:
    return loader_loop(work, data, device, PilImages(data, work.job), lambda *_: None)


def tensors(work: Work, data: ImageSet, device: torch.device) -> Iterator[float]:
    dataset = TensorDataset(normalised(data.images, work.job.mean, work.job.std), data.labels)
    return loader_loop(work, data, device, dataset, lambda *_: None)


def logged(work: Work, data: ImageSet, device: torch.device) -> Iterator[float]:
    from torch.utils.tensorboard import SummaryWriter
    from tqdm import tqdm

    writer = SummaryWriter(tempfile.mkdtemp())
    bar = tqdm(file=sys.stderr, disable=None)

    def after(loss: float, count: int) -> None:
        writer.add_scalar("loss", loss, count)
        bar.set_postfix(loss=loss)
        bar.update()

    dataset = TensorDataset(normalised(data.images, work.job.mean, work.job.std), data.labels)
    return loader_loop(work, data, device, dataset, after)


def lightning(work: Work, data: ImageSet, device: torch.device) -> Iterator[float]:
    """Lightning cannot be stepped epoch by epoch: it trains its rounds at once, the first one left out."""
    import lightning as lit

    seconds: list[float] = []

    class Module(lit.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.model, _ = fresh(work, torch.device("cpu"))

        def training_step(self, batch, _):
            images, labels = batch
            loss = nn.functional.cross_entropy(self.model(images), labels)
            self.log("loss", loss, prog_bar=True, on_step=True)
            return loss

        def configure_optimizers(self):
            return torch.optim.Adam(self.parameters(), lr=work.job.learning_rate)

        def on_train_epoch_start(self) -> None:
            synchronise(device)
            self.began = time.perf_counter()

        def on_train_epoch_end(self) -> None:
            synchronise(device)
            seconds.append(time.perf_counter() - self.began)

    dataset = TensorDataset(normalised(data.images, work.job.mean, work.job.std), data.labels)
    loader = DataLoader(dataset, batch_size=work.job.batch_size, shuffle=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trainer = lit.Trainer(
            max_epochs=ROUNDS + 1,
            accelerator="cpu" if device.type == "cpu" else "gpu",
            devices=1,
            enable_checkpointing=False,
            default_root_dir=tempfile.mkdtemp(),
            enable_model_summary=False,
            log_every_n_steps=1,
        )
        trainer.fit(Module(), loader)
    yield from seconds


def resident(work: Work, data: ImageSet, device: torch.device) -> Iterator[float]:
    model, optimiser = fresh(work, device)
    images = normalised(data.images, work.job.mean, work.job.std).to(device)
    labels = data.labels.to(device)

    def epoch() -> None:
        for index in torch.randperm(len(labels), device=device).split(work.job.batch_size):
            optimiser.zero_grad()
            loss = nn.functional.cross_entropy(model(images[index]), labels[index])
            loss.backward()
            optimiser.step()

    return timed(device, epoch)


def engine(**knobs: object) -> Callable[[Work, ImageSet, torch.device], Iterator[float]]:
    """This program's engine: exactly what the window and ``bench`` run."""

    def contender(work: Work, data: ImageSet, device: torch.device) -> Iterator[float]:
        job = work.job.replace(epochs=10_000, **knobs)
        train.load_pair = lambda *_: (data, ImageSet("few", data.images[:64], data.labels[:64], data.classes))
        where = Device(name=str(device), label=str(device), kind=device.type, usable=True)
        for event in train.run(job, where, Environment(program="benchmark", python="", system=""), train.Kept()):
            if isinstance(event, EpochDone):
                yield event.seconds
            elif isinstance(event, RunFailed):
                raise RuntimeError(event.message)

    contender.knobs = knobs  # type: ignore[attr-defined]
    return contender


CONTENDERS: dict[str, Callable[[Work, ImageSet, torch.device], Iterator[float]]] = {
    "script (PIL transforms)": script,
    "loop + TensorBoard + tqdm": logged,
    "Lightning, log each step": lightning,
    "DataLoader over tensors": tensors,
    "resident, plain eager loop": resident,
    "engine, tensors": engine(input="tensors"),
    "engine, resident": engine(),
    "engine, channels_last": engine(channels_last=True),
    "engine, bf16, channels_last": engine(precision="bf16", channels_last=True),
    "engine, graph": engine(launch="graph"),
    "engine, graph, TF32": engine(launch="graph", precision="tf32"),
    "engine, graph, TF32, channels_last": engine(launch="graph", precision="tf32", channels_last=True),
    "engine, graph, bf16, channels_last": engine(launch="graph", precision="bf16", channels_last=True),
    "engine, compiled": engine(launch="compiled"),
    "engine, compiled, TF32": engine(launch="compiled", precision="tf32"),
    "engine, compiled, TF32, channels_last": engine(launch="compiled", precision="tf32", channels_last=True),
    "engine, compiled, bf16, channels_last": engine(launch="compiled", precision="bf16", channels_last=True),
}
ROUNDS = 5


def measure(work: Work, device: torch.device, wanted: list[str]) -> dict[str, list[float]]:
    """Seconds of each contender's epochs, a warm-up epoch left out."""
    data = random_set(work)
    entrants: dict[str, Iterator[float]] = {}
    for name in wanted:
        contender = CONTENDERS[name]
        if unsupported(work.job.replace(**getattr(contender, "knobs", {})), str(device)):
            continue
        try:
            entrant = contender(work, data, device)
            next(entrant)
            entrants[name] = entrant
        except (ImportError, RuntimeError) as error:
            print(f"{name} is left out: {type(error).__name__}: {str(error)[:160]}", file=sys.stderr)
    found: dict[str, list[float]] = {name: [] for name in entrants}
    for _ in range(ROUNDS):
        for name, entrant in entrants.items():
            # each run set its own precision when it began; a plain loop has torch's defaults
            set_precision(work.job.replace(**getattr(CONTENDERS[name], "knobs", {})))
            found[name].append(next(entrant))
    for entrant in entrants.values():
        entrant.close()
    return found


def main() -> None:
    global ROUNDS
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", choices=WORKS, default="flux")
    parser.add_argument("--batch-size", type=int)
    parser.add_argument("--images", type=int, help="fewer images than the work's own, where time is short")
    parser.add_argument("--devices", default="cpu")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--only", help="comma-separated beginnings of the contenders' names")
    parser.add_argument("--json")
    options = parser.parse_args()
    ROUNDS = options.rounds
    base = WORKS[options.work]
    images = options.images or base.images
    job = base.job.replace(train_images=images, batch_size=options.batch_size or base.job.batch_size)
    work = Work(job, base.channels, base.size, images)
    starts = tuple(options.only.split(",")) if options.only else ("",)
    wanted = [name for name in CONTENDERS if name.startswith(starts)]
    results = {}
    for name in options.devices.split(","):
        device = torch.device(name)
        results[name] = measure(work, device, wanted)
        label = torch.cuda.get_device_name(device) if device.type == "cuda" else f"{torch.get_num_threads()} threads"
        show(f"{options.work}, batch {job.batch_size}, {images:,} images, {name} ({label})", results[name])
    if options.json:
        with Path(options.json).open("w", encoding="utf-8") as file:
            json.dump(results, file, indent=1)


def show(title: str, found: dict[str, list[float]]) -> None:
    table = Table(title=f"{title}; torch {torch.__version__}; median of {ROUNDS} epochs taken in turn")
    table.add_column("way of training")
    for heading in ("median ms", "fastest", "slowest", "times faster than the first"):
        table.add_column(heading, justify="right")
    first = None
    for name, seconds in found.items():
        median = statistics.median(seconds)
        first = first or median
        table.add_row(
            name,
            f"{median * 1e3:.1f}",
            f"{min(seconds) * 1e3:.1f}",
            f"{max(seconds) * 1e3:.1f}",
            f"{first / median:.1f}",
        )
    Console(width=120).print(table)


if __name__ == "__main__":
    main()
