"""Finds what can train here: a device is usable when a real, tiny training step has run on it.

The step runs in this process, in a thread with a time limit: the worker is itself the process that may be lost, and a
second one would cost seconds and a second CUDA context. A step that never ends leaves its thread behind and the
device unusable. What takes the whole process along (a crash, a hang inside a call that lets no other thread run)
is for the worker's host, which starts it again with ``--hide-gpus REASON``.
"""

from __future__ import annotations

import os
import sys
import time
import warnings
from collections.abc import Callable, Generator, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

import msgspec
import torch

from gpu_trainer_gui.engine import memory
from gpu_trainer_gui.engine.probe import training_step, within
from gpu_trainer_gui.monitor import diagnosis, environment, host, nvml
from gpu_trainer_gui.monitor.environment import TorchFacts
from gpu_trainer_gui.runs.environment import Device, Environment
from gpu_trainer_gui.runs.events import Progress, WorkerReady
from gpu_trainer_gui.runs.job import JobError

_TORCH = str(torch.__version__)
PROBE_SECONDS = 40.0
"""A first step may take this long: drivers translate kernels for cards that came after the torch."""
DRIVER_SECONDS = 10.0
LOOK_SECONDS = 70.0
"""All together, so that the worker answers before its host gives it up; a card tried later gets the least."""
LEAST_SECONDS = 2.0


_Report = Callable[[str, float, float | None], Progress]


@dataclass(frozen=True, slots=True)
class _Outcome:
    """How a probe went: its seconds, and the error's text; ``hangs`` when it never came to an end."""

    seconds: float
    error: str = ""
    hangs: bool = False


def look(hide_gpus: str = "") -> Iterator[Progress | WorkerReady]:
    """Find the devices; the CPU first, then every GPU. The last event is WorkerReady.

    With ``hide_gpus``, a reason in words, no GPU is touched.
    """
    began = time.perf_counter()
    deadline = began + LOOK_SECONDS

    def progress(what: str, done: float = 0, total: float | None = None) -> Progress:
        return Progress(at=time.perf_counter() - began, what=what, done=done, total=total, unit="s" if total else "")

    yield progress("Looking for devices")
    cards, error, candidates = nvml.Cards(), "", list[Device]()
    if not hide_gpus:
        cards = yield from within(nvml.gpus, DRIVER_SECONDS, partial(progress, "Asking the driver"), _no_cards)
        error, candidates = yield from within(
            _candidates, PROBE_SECONDS, partial(progress, "Asking for GPUs"), _no_candidates
        )
    devices = yield from _tried([_cpu(), *candidates], progress, deadline)
    yield WorkerReady(
        at=time.perf_counter() - began,
        devices=tuple(devices),
        environment=_environment(tuple(devices), cards, error, hide_gpus),
    )


def find(name: str, ready: WorkerReady) -> Device:
    """The device of that name ("cuda" is "cuda:0"). Raises JobError where it is not there or cannot be used."""
    wanted = f"{name}:0" if name in ("cuda", "xpu") else name
    device = next((device for device in ready.devices if device.name == wanted), None)
    if device is not None and device.usable:
        return device
    if device is not None:
        raise JobError("devices", f"{device.name} ({device.label}) cannot be used: {device.reason}")
    there = ", ".join(f"{device.name} ({device.label})" for device in ready.devices if device.usable) or "none"
    why = ready.environment.gpu_absence if wanted != "cpu" else ""
    raise JobError("devices", f"there is no device {name!r} here; there are: {there}" + (f". {why}" if why else ""))


def _cpu() -> Device:
    return Device(name="cpu", label=host.cpu_name() or "CPU", kind="cpu", usable=True, memory_bytes=host.memory_bytes())


def _no_cards(seconds: float) -> nvml.Cards:
    return nvml.Cards(fault="other", reason=f"the driver did not answer within {seconds:.0f} s")


def _no_candidates(seconds: float) -> tuple[str, list[Device]]:
    return f"the driver did not answer within {seconds:.0f} s", []


def _candidates() -> tuple[str, list[Device]]:
    """Every GPU that torch sees, not yet tried; and what torch said where it could not start CUDA."""
    found: list[Device] = []
    error = ""
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        try:
            if torch.version.cuda is not None or torch.version.hip is not None:
                torch.cuda.init()
                found = [_cuda(index) for index in range(torch.cuda.device_count())]
        except Exception as refused:
            error = str(refused)
    # what is wrong with a driver comes as a warning where torch goes on without it
    error = error or "\n".join(str(warning.message) for warning in heard if not found)
    with suppress(Exception):
        found += _others()
    return error, found


def _cuda(index: int) -> Device:
    """A CUDA device as torch describes it; one that it cannot describe is listed with the reason."""
    name = f"cuda:{index}"
    try:
        properties = torch.cuda.get_device_properties(index)
    except Exception as error:
        reason = diagnosis.trouble(str(error))
        return Device(name=name, label=f"GPU {index}", kind="cuda", usable=False, reason=reason)
    return Device(
        name=name,
        label=properties.name,
        kind="cuda",
        usable=True,
        memory_bytes=properties.total_memory,
        compute_capability=f"{properties.major}.{properties.minor}",
    )


def _others() -> list[Device]:
    """GPUs of other makers, through torch's common interface."""
    if not torch.accelerator.is_available():
        return []
    current = torch.accelerator.current_accelerator()
    if current is None or current.type == "cuda":
        return []
    if current.type == "mps":
        memory = getattr(torch.mps, "recommended_max_memory", lambda: None)()
        return [Device(name="mps", label=_apple(), kind="mps", usable=True, memory_bytes=memory)]
    count = torch.accelerator.device_count()
    return [_other(current.type, index) for index in range(count)]


def _other(kind: str, index: int) -> Device:
    label, memory = f"{kind.upper()} {index}", None
    with suppress(Exception):
        properties = getattr(torch, kind).get_device_properties(index)
        label, memory = properties.name, properties.total_memory
    return Device(name=f"{kind}:{index}", label=label, kind=kind, usable=True, memory_bytes=memory)


def _apple() -> str:
    return f"{host.cpu_name() or 'Apple'} GPU"


def _tried(devices: list[Device], progress: _Report, deadline: float) -> Generator[Progress, None, list[Device]]:
    """The devices with what their probes showed."""
    judged = []
    poisoned = False
    for device in devices:
        if device.usable:
            outcome = yield from _probed(device.name, progress, deadline)
            poisoned = poisoned or (device.kind == "cuda" and diagnosis.sticky(outcome.error))
            device = _judged(device, outcome)
        judged.append(device)
    if poisoned:
        # such an error can spoil CUDA for the whole process: what worked before it must show that it still does
        for place, device in enumerate(judged):
            if device.usable and device.kind == "cuda":
                judged[place] = _judged(device, (yield from _probed(device.name, progress, deadline)))
    return judged


def _probed(name: str, progress: _Report, deadline: float) -> Generator[Progress, None, _Outcome]:
    """Try a device, with a sign of life each second."""
    limit = min(PROBE_SECONDS, max(LEAST_SECONDS, deadline - time.perf_counter()))

    def timed() -> _Outcome:
        began = time.perf_counter()
        try:
            # the first optimiser of a process imports for seconds; that is no device's fault
            torch.optim.Adam([torch.zeros(1)])
            began = time.perf_counter()
            training_step(torch.device(name))
            memory.release(torch.device(name))
        except Exception as error:
            return _Outcome(time.perf_counter() - began, f"{error}" or type(error).__name__)
        return _Outcome(time.perf_counter() - began)

    def late(seconds: float) -> _Outcome:
        return _Outcome(seconds, f"a training step did not end within {seconds:.0f} s", hangs=True)

    yield progress(f"Trying {name}", 0, None)
    return (yield from within(timed, limit, partial(progress, f"Trying {name}"), late))


def _judged(device: Device, outcome: _Outcome) -> Device:
    """The device with what its probe showed."""
    if not outcome.error:
        return msgspec.structs.replace(device, probe_seconds=outcome.seconds)
    # where the device hangs torch is asked nothing more
    ask = device.kind == "cuda" and torch.version.cuda is not None and not outcome.hangs
    codes = tuple(torch.cuda.get_arch_list()) if ask else ()
    unfit = diagnosis.unfit(device.compute_capability, codes, _TORCH)
    reason = diagnosis.trouble(outcome.error, unfit_because=unfit)
    return msgspec.structs.replace(device, usable=False, reason=reason, probe_seconds=outcome.seconds)


def _environment(devices: tuple[Device, ...], cards: nvml.Cards, error: str, hidden: str) -> Environment:
    gpus = [device for device in devices if device.is_gpu]
    usable = [device for device in gpus if device.usable]
    first = usable[0] if usable else None
    facts = TorchFacts(
        version=_TORCH,
        cuda=torch.version.cuda,
        cudnn=_cudnn() if usable else None,
        tf32=None,
        gpu=first.label if first else None,
        gpu_count=len(usable) if first else None,
        gpu_memory_bytes=first.memory_bytes if first else None,
        uuid=uuid_of(torch.device(first.name)) if first else None,
    )
    return environment.build(
        facts,
        cards,
        gpu_absence="" if usable else _absence(gpus, cards, error, hidden),
        complaints=(*_complaints(), *_partly_hidden(gpus, cards)),
    )


def _absence(gpus: list[Device], cards: nvml.Cards, error: str, hidden: str) -> str:
    if gpus:
        return " ".join(f"{device.label} cannot be used: {device.reason}." for device in gpus)
    return diagnosis.absence(
        diagnosis.Facts(
            torch=_TORCH,
            torch_cuda=torch.version.cuda,
            torch_hip=torch.version.hip,
            cards=cards,
            visible=os.environ.get("CUDA_VISIBLE_DEVICES"),
            error=error,
            hidden=hidden,
            mac=sys.platform == "darwin",
        )
    )


def _partly_hidden(gpus: list[Device], cards: nvml.Cards) -> tuple[str, ...]:
    seen = sum(device.kind == "cuda" for device in gpus)
    told = diagnosis.partly_hidden(os.environ.get("CUDA_VISIBLE_DEVICES"), seen, len(cards.gpus))
    return (told,) if told else ()


def uuid_of(device: torch.device) -> str | None:
    """The UUID by which the driver knows a CUDA device; None for other devices."""
    if device.type != "cuda":
        return None
    with suppress(Exception):
        return str(torch.cuda.get_device_properties(device).uuid)
    return None


def _cudnn() -> str | None:
    """cuDNN's version as its makers write it: 91900 is 9.19.0."""
    number = torch.backends.cudnn.version() if torch.backends.cudnn.is_available() else None
    return None if number is None else f"{number // 10000}.{number % 10000 // 100}.{number % 100}"


def _complaints() -> tuple[str, ...]:
    """What is wrong with the installation though it can train; torchvision is imported only on suspicion."""
    version = environment.version_of("torchvision")
    if version is None:
        return (diagnosis.torchvision_trouble(_TORCH, None, ""),)
    # torch's package has its release's plain number where torch itself adds the CUDA it was built for
    if diagnosis.paired(environment.version_of("torch") or _TORCH, version):
        return ()
    try:
        import torchvision  # noqa: F401
    except Exception as error:
        return (diagnosis.torchvision_trouble(_TORCH, version, str(error)),)
    return ()
