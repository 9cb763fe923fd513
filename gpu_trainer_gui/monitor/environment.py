"""Builds the Environment of a run from what the host and the driver say; what torch says is handed in."""

from __future__ import annotations

import hashlib
import importlib.metadata
import platform
from dataclasses import dataclass

from gpu_trainer_gui import __version__
from gpu_trainer_gui.monitor import host, nvml
from gpu_trainer_gui.monitor.driver import ask
from gpu_trainer_gui.runs.environment import Environment

_SALT = b"gpu-trainer-gui"


@dataclass(frozen=True, slots=True, kw_only=True)
class TorchFacts:
    """What torch says of itself; ``uuid`` is its first usable GPU's, ``gpu`` that GPU's name."""

    version: str | None = None
    cuda: str | None = None
    cudnn: str | None = None
    tf32: bool | None = None
    gpu: str | None = None
    gpu_count: int | None = None
    gpu_memory_bytes: int | None = None
    uuid: str | None = None


def build(
    torch: TorchFacts | None = None,
    cards: nvml.Cards | None = None,
    *,
    gpu_absence: str = "",
    complaints: tuple[str, ...] = (),
) -> Environment:
    """The environment as it is now; where torch names no card, the driver's first one is described."""
    torch = torch or TorchFacts()
    cards = cards or nvml.gpus()
    card = described(torch.uuid, cards)
    return Environment(
        program=__version__,
        python=platform.python_version(),
        system=system(),
        hostname_hash=hostname_hash(platform.node()),
        torch=torch.version,
        torchvision=version_of("torchvision"),
        numpy=version_of("numpy"),
        cuda=torch.cuda,
        cudnn=torch.cudnn,
        cpu=host.cpu_name(),
        cpu_cores=host.cores(),
        cpu_threads_usable=host.usable_threads(),
        cpu_mhz=host.mhz(),
        memory_bytes=host.memory_bytes(),
        on_battery=host.on_battery(),
        gpu=torch.gpu or (card.name if card else None),
        gpu_count=torch.gpu_count if torch.gpu_count is not None else (len(cards.gpus) or None),
        driver=cards.driver,
        driver_cuda=cards.driver_cuda,
        gpu_memory_bytes=torch.gpu_memory_bytes or (card.memory_bytes if card else None),
        gpu_power_limit_watts=card.power_limit_watts if card else None,
        gpu_max_sm_clock_mhz=card.max_sm_clock if card else None,
        gpu_max_memory_clock_mhz=card.max_memory_clock if card else None,
        tf32=torch.tf32,
        gpu_absence=gpu_absence,
        complaints=complaints,
    )


def described(uuid: str | None, cards: nvml.Cards) -> nvml.Gpu | None:
    """The card with this UUID, with or without its prefix; without a UUID the first one.

    A slice of a card has a UUID of its own, which no card here has: it is described only where there is one card.
    """
    if uuid is None or len(cards.gpus) == 1:
        return cards.gpus[0] if cards.gpus else None
    plain = uuid.removeprefix("GPU-")
    return next((gpu for gpu in cards.gpus if gpu.uuid is not None and gpu.uuid.removeprefix("GPU-") == plain), None)


def hostname_hash(name: str) -> str:
    """A mark by which one machine's runs are known as such, and from which its name is not read."""
    return hashlib.blake2b(name.encode(), digest_size=5, salt=_SALT).hexdigest() if name else ""


def system() -> str:
    """The operating system in short, as in "Linux 6.8 (Ubuntu 24.04.1 LTS), x86_64"."""
    release = platform.release()
    named = ask(lambda: platform.freedesktop_os_release()["PRETTY_NAME"]) if platform.system() == "Linux" else None
    if platform.system() == "Darwin":
        return f"macOS {platform.mac_ver()[0]}, {platform.machine()}"
    return f"{platform.system()} {release}{f' ({named})' if named else ''}, {platform.machine()}"


def version_of(package: str) -> str | None:
    """An installed package's version, without importing it: torchvision takes seconds."""
    return ask(lambda: importlib.metadata.version(package))
