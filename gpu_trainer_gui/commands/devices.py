"""``gpu-trainer-gui devices``: what can train here, and what is wrong with the rest, in words."""

from __future__ import annotations

import argparse
import sys

import msgspec
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from gpu_trainer_gui.runs.environment import Device, Environment
from gpu_trainer_gui.runs.events import SCHEMA, WorkerReady


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print everything that is known as JSON, and nothing else")


def run(options: argparse.Namespace) -> int:
    """Returns the exit code, always 0: a GPU that cannot be used is an answer."""
    ready = _looked()
    if options.json:
        found = {"schema": SCHEMA, "environment": ready.environment, "devices": ready.devices}
        sys.stdout.write(msgspec.json.format(msgspec.json.encode(found), indent=2).decode() + "\n")
        return 0
    page = Console()
    page.print(table(ready.devices))
    for sentence in sentences(ready):
        # folded by the terminal, not by us: a command in it is copied whole
        page.print(escape(sentence), soft_wrap=True)
    return 0


def table(devices: tuple[Device, ...]) -> Table:
    """The devices, a row each."""
    rows = Table(title="Devices")
    for heading in ("name", "what", "can train"):
        rows.add_column(heading)
    for heading in ("memory", "compute capability", "first step"):
        rows.add_column(heading, justify="right")
    for device in devices:
        rows.add_row(
            device.name,
            escape(device.label),
            "yes" if device.usable else "no",
            f"{device.memory_bytes / 2**30:,.1f} GiB" if device.memory_bytes is not None else "",
            device.compute_capability or "",
            f"{device.probe_seconds:.2f} s" if device.probe_seconds is not None else "",
        )
    return rows


def sentences(ready: WorkerReady) -> list[str]:
    """The machine's software in a line, then all that is wrong."""
    told = [software(ready.environment)]
    told += [f"{device.name} cannot be used: {device.reason}" for device in ready.devices if not device.usable]
    if ready.environment.gpu_absence and all(not device.is_gpu for device in ready.devices):
        told.append(ready.environment.gpu_absence)
    return told + list(ready.environment.complaints)


def software(here: Environment) -> str:
    """What the devices run under; what is not known is left out."""
    named = {
        "torch": here.torch,
        "torchvision": here.torchvision,
        "CUDA": here.cuda,
        "cuDNN": here.cudnn,
        "driver": here.driver,
        "CPU threads": here.cpu_threads_usable,
    }
    known = ", ".join(f"{name} {value}" for name, value in named.items() if value is not None)
    return f"{here.system}; Python {here.python}; {known}"


def _looked() -> WorkerReady:
    notes = Console(stderr=True)
    with notes.status("Starting PyTorch…") as status:
        from gpu_trainer_gui.engine import devices

        for event in devices.look():
            if isinstance(event, WorkerReady):
                return event
            status.update(f"{event.what}…")
    raise AssertionError("looking for devices ends with what was found")
