"""What the card's memory is made of, and how the allocator has laid it out."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import torch

from gpu_trainer_gui.engine.batches import Feed, ResidentFeed, Table
from gpu_trainer_gui.engine.learner import Learner
from gpu_trainer_gui.monitor import nvml
from gpu_trainer_gui.runs.events import MemoryBlock, MemoryBreakdown, MemoryMap, MemorySegment, OtherProcess

_WHERE_FRAMES = ("torch/", "gpu_trainer_gui/engine/memory")


def categories(learner: Learner, feed: Feed | None, test: Table | None) -> dict[str, list[torch.Tensor]]:
    """The tensors whose purpose is known: parameters (with buffers), gradients, optimiser state, data."""
    parameters = [*learner.model.parameters(), *learner.model.buffers()]
    state = [v for s in learner.optimiser.state.values() for v in s.values() if isinstance(v, torch.Tensor)]
    tables = ([feed.table] if isinstance(feed, ResidentFeed) else []) + ([test] if test else [])
    return {
        "parameters": parameters,
        "gradients": [p.grad for p in learner.model.parameters() if p.grad is not None],
        "optimiser": [tensor for tensor in state if tensor.device == learner.device],
        "data": [tensor for table in tables for tensor in (table.rows, table.labels)],
    }


def breakdown(learner: Learner, feed: Feed, test: Table, at: float) -> MemoryBreakdown | None:
    """What the card's memory is made of at the run's peak; None where the device is not CUDA.

    The parts add up: parameters, gradients, optimiser state and data are counted; activations and workspace are the
    peak over those; cached is what the allocator holds beyond the peak; the context is what the driver counts for
    this process beyond the allocator; the rest of what is used belongs to other processes.
    """
    device = learner.device
    if device.type != "cuda":
        return None
    sizes = {
        name: sum(tensor.untyped_storage().nbytes() for tensor in tensors)
        for name, tensors in categories(learner, feed, test).items()
    }
    sizes["gradients"] = sum(parameter.nbytes for parameter in learner.model.parameters())
    peak, reserved = torch.cuda.max_memory_allocated(device), torch.cuda.memory_reserved(device)
    free, total = torch.cuda.mem_get_info(device)
    ours, processes = _processes(device)
    used = total - free
    return MemoryBreakdown(
        at=at,
        **sizes,
        activations=max(0, peak - sum(sizes.values())),
        cached=max(0, reserved - peak),
        context=None if ours is None else max(0, ours - reserved),
        others=None if ours is None else max(0, used - max(ours, reserved)),
        free=free,
        total=total,
        processes=processes,
    )


def _processes(device: torch.device) -> tuple[int | None, tuple[OtherProcess, ...]]:
    """What the driver counts for this process, in bytes, and the other processes on the card."""
    found = nvml.processes(torch.cuda.get_device_properties(device).uuid)
    if found is None:
        return None, ()
    mine = psutil.Process().pid
    ours = next((process.used for process in found if process.pid == mine), None)
    others = tuple(
        OtherProcess(pid=process.pid, name=process.name, used=process.used) for process in found if process.pid != mine
    )
    return ours, others


def memory_map(device: torch.device, known: dict[str, list[torch.Tensor]], at: float) -> MemoryMap:
    """The allocator's segments and their blocks, coloured by purpose where it is known. Costs milliseconds."""
    places = {tensor.untyped_storage().data_ptr(): name for name, tensors in known.items() for tensor in tensors}
    index = device.index or 0
    segments = (
        MemorySegment(
            segment["address"], segment["total_size"], segment["segment_type"], tuple(_blocks(segment, places))
        )
        for segment in torch.cuda.memory_snapshot()
        if segment["device"] == index
    )
    return MemoryMap(at=at, segments=tuple(sorted(segments, key=lambda segment: segment.address)))


def _blocks(segment: dict[str, Any], places: dict[int, str]) -> Iterator[MemoryBlock]:
    address = segment["address"]
    for block in segment["blocks"]:
        start = block.get("address", address)
        category = places.get(start, "") if block["state"] == "active_allocated" else ""
        yield MemoryBlock(block["size"], block["state"], category, _where(block))
        address = start + block["size"]


def _where(block: dict[str, Any]) -> str:
    """The line of Python that allocated the block, where history was recorded; torch's own lines are passed over."""
    for frame in block.get("frames", ()):
        name = frame["filename"].replace("\\", "/")
        if name.endswith(".py") and not any(part in name for part in _WHERE_FRAMES):
            return f"{Path(name).name}:{frame['line']} {frame['name']}"
    return ""


def save_snapshot(path: Path) -> None:
    """Write the allocator's state as the pickle that PyTorch's memory viewer opens. Raises OSError."""
    with path.open("wb") as file:
        pickle.dump(torch.cuda.memory._snapshot(), file)
