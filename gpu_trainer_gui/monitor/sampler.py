"""Reads the driver and the host when asked, and tells what may have disturbed a timed span. No thread of its own."""

from __future__ import annotations

import time
from dataclasses import dataclass

from gpu_trainer_gui.monitor import host, nvml
from gpu_trainer_gui.runs.events import HardwareSampled, MemorySampled

MOST_A_SECOND = 20
"""More readings would tell nothing new: the driver renews its own figures about as often."""

SLOWED_SHARE = 0.05
"""An epoch is "throttled" when heat or a power brake held the clocks down for more than this share of it."""
CLOCK_SHARE = 0.75
"""At its power limit any card gives up some of its clock; below this share of its top clock it is "throttled" too."""
GPU_SHARE = 0.05
"""The card is "busy_gpu" when another process took more than this share of it in one of the driver's samples."""
CPU_SHARE = 0.9
"""A CPU's epoch is "busy_cpu" when others leave it less than this share of the threads that it may use."""
CPU_SHARE_BESIDE_GPU = 0.5
"""The same for a GPU's epoch, which needs the CPU to launch its work and to read its data alone."""
CPU_LEAST = 0.5
"""Others that take fewer threads than this never count: the window itself takes up to a quarter of one."""
CPU_SECONDS = 0.25
"""Systems count processor time in steps of 10 ms: in a shorter span the others' share cannot be told."""

_HOT = {"hardware slowdown", "thermal slowdown", "hardware thermal slowdown", "power brake"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """What ``disturbances`` compares: the state of host and card at one moment. Seconds; counters since the start."""

    at: float
    strain: nvml.Strain | None = None
    cpu: host.CpuTimes | None = None
    cpu_throttled_ms: int | None = None
    on_battery: bool | None = None
    threads: int | None = None
    all_threads: int | None = None
    on_gpu: bool = False


class Sampler:
    """Reads the host and, where there is one, a card by its UUID (as torch's device properties print it)."""

    def __init__(self, uuid: object | None = None) -> None:
        self._uuid = uuid
        self._cpu = host.CpuMeter()
        self._energy = host.EnergyMeter()
        self._threads = host.usable_threads()
        self._all_threads = host.all_threads()
        self._last_hardware: float | None = None
        self._last_moment: float | None = None

    def due(self) -> bool:
        """Whether a reading now keeps to the most a second."""
        return self._last_hardware is None or time.monotonic() - self._last_hardware >= 1 / MOST_A_SECOND

    def hardware(self, at: float) -> HardwareSampled:
        """One reading of everything, stamped ``at``; about 0.2 ms."""
        self._last_hardware = time.monotonic()
        gpu = self._reading()
        return HardwareSampled(
            at=at,
            gpu_utilisation=gpu.utilisation,
            gpu_watts=gpu.watts,
            gpu_celsius=gpu.celsius,
            gpu_sm_mhz=gpu.sm_mhz,
            gpu_memory_mhz=gpu.memory_mhz,
            gpu_clock_limits=gpu.clock_limits or (),
            gpu_energy_joules=gpu.energy_joules,
            gpu_other_processes=gpu.other_processes,
            pcie_receive=gpu.pcie_receive,
            pcie_send=gpu.pcie_send,
            cpu_utilisation=self._cpu.utilisation(),
            cpu_mhz=host.mhz(),
            cpu_energy_joules=self._energy.joules(),
            on_battery=host.on_battery(),
        )

    def memory(self, at: float, phase: str = "") -> MemorySampled:
        """The card's memory as its driver counts it, all processes together, and this process's on the host."""
        used, total = nvml.memory(self._uuid) if self._uuid is not None else (None, None)
        return MemorySampled(at=at, device_used=used, device_total=total, host_rss=host.resident_bytes(), phase=phase)

    def moment(self) -> Moment:
        """The state now, to be compared with a later one. Call it outside the stopwatch, right beside it."""
        since, self._last_moment = self._last_moment, time.time()
        return Moment(
            at=time.perf_counter(),
            strain=nvml.strain(self._uuid, since) if self._uuid is not None else None,
            cpu=host.cpu_times(),
            cpu_throttled_ms=host.throttled_ms(),
            on_battery=host.on_battery(),
            threads=self._threads,
            all_threads=self._all_threads,
            on_gpu=self._uuid is not None,
        )

    def _reading(self) -> nvml.Reading:
        found = nvml.reading(self._uuid) if self._uuid is not None else None
        return found or nvml.Reading()


def disturbances(before: Moment, after: Moment) -> tuple[str, ...]:
    """Flags for what was timed between two moments: "throttled", "busy_gpu", "busy_cpu", "battery".

    A flag is raised on evidence alone: what the system does not tell raises none. The thresholds are above.
    """
    judged = {
        "throttled": _throttled(before, after),
        "busy_gpu": _busy_gpu(after),
        "busy_cpu": _busy_cpu(before, after),
        "battery": bool(before.on_battery or after.on_battery),
    }
    return tuple(flag for flag, raised in judged.items() if raised)


def _throttled(before: Moment, after: Moment) -> bool:
    """Heat alone makes a CPU's epoch throttled, heat, a power brake or a tight power limit a GPU's."""
    span = after.at - before.at
    if not after.on_gpu:
        held = _difference(before.cpu_throttled_ms, after.cpu_throttled_ms)
        return held is not None and held / 1e3 > SLOWED_SHARE * span
    first, last = before.strain, after.strain
    if last is None:
        return False
    held = _difference(first.slowed_ns if first else None, last.slowed_ns)
    if held is not None and held / 1e9 > SLOWED_SHARE * span:
        return True
    limits = set(last.clock_limits or ())
    # without counters all that is known is what holds the clocks down right after the work
    if held is None and limits & _HOT:
        return True
    at_limit = "power cap" in limits and last.sm_mhz is not None and last.max_sm_mhz is not None
    return at_limit and (last.sm_mhz or 0) < CLOCK_SHARE * (last.max_sm_mhz or 0)


def _busy_gpu(after: Moment) -> bool:
    share = after.strain.others_utilisation if after.strain else None
    return share is not None and share > GPU_SHARE


def _busy_cpu(before: Moment, after: Moment) -> bool:
    others = others_threads(before, after)
    if others is None or after.threads is None or after.all_threads is None:
        return False
    needed = (CPU_SHARE_BESIDE_GPU if after.on_gpu else CPU_SHARE) * after.threads
    return others >= CPU_LEAST and after.all_threads - others < needed


def others_threads(before: Moment, after: Moment) -> float | None:
    """How many hardware threads other processes kept busy in between, on average; None where it cannot be told."""
    first, last, span = before.cpu, after.cpu, after.at - before.at
    if first is None or last is None or span < CPU_SECONDS or last.total <= first.total:
        return None
    return max(0.0, (last.busy - first.busy) - (last.ours - first.ours)) / span


def _difference(before: int | None, after: int | None) -> int | None:
    return None if before is None or after is None else after - before
