"""What NVIDIA's driver says about its cards, as immutable snapshots; what it does not tell is None.

Every figure is asked for on its own: cards, virtual cards and drivers each leave out others, and one refusal must not
cost the rest. Nothing here raises, and nothing here creates a CUDA context.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import psutil

from gpu_trainer_gui.monitor import host
from gpu_trainer_gui.monitor.driver import Fault, ask, driver

# What holds the clocks down, bit by bit as NVML numbers it. Being idle (1) is no limit.
CLOCK_LIMITS = {
    0x002: "application clocks set",
    0x004: "power cap",
    0x008: "hardware slowdown",
    0x010: "sync boost",
    0x020: "thermal slowdown",
    0x040: "hardware thermal slowdown",
    0x080: "power brake",
    0x100: "display clocks set",
}
_SLOWED_FIELDS = (269, 270, 271)  # thermal slowdown by software, by hardware, power brake: nanoseconds
_PCIE_FIELDS = (198, 197)  # bytes received, bytes sent by the card


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """One card: bytes, watts, MHz. ``index`` is the driver's, which need not be CUDA's."""

    index: int
    name: str | None = None
    uuid: str | None = None
    memory_bytes: int | None = None
    driver: str | None = None
    driver_cuda: str | None = None
    power_limit_watts: float | None = None
    max_sm_clock: float | None = None
    max_memory_clock: float | None = None
    compute_capability: str | None = None
    mig: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Cards:
    """The cards, or in ``reason`` (English) and ``fault`` (stable) why there are none to tell of.

    ``on_the_bus`` counts NVIDIA's display controllers that the system sees with or without a driver.
    """

    gpus: tuple[Gpu, ...] = ()
    driver: str | None = None
    driver_cuda: str | None = None
    fault: Fault = ""
    reason: str = ""
    on_the_bus: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuProcess:
    """A process with memory on the card, in bytes."""

    pid: int
    name: str | None
    used: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """One card now: shares 0 to 1, watts, degrees Celsius, MHz, joules since the driver started, bytes, bytes/s."""

    utilisation: float | None = None
    watts: float | None = None
    celsius: float | None = None
    sm_mhz: float | None = None
    memory_mhz: float | None = None
    clock_limits: tuple[str, ...] | None = None
    energy_joules: float | None = None
    pcie_receive: float | None = None
    pcie_send: float | None = None
    memory_used: int | None = None
    memory_total: int | None = None
    other_processes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Strain:
    """What may have disturbed a timed span: clocks held down, and how busy other processes kept the card.

    ``slowed_ns`` counts the nanoseconds that heat or a power brake held the clocks down since the driver started.
    """

    clock_limits: tuple[str, ...] | None = None
    sm_mhz: float | None = None
    max_sm_mhz: float | None = None
    slowed_ns: int | None = None
    others_utilisation: float | None = None


def gpus() -> Cards:
    """Every card that the driver knows, or the reason why not."""
    if not driver.start():
        return Cards(fault=driver.fault, reason=driver.reason, on_the_bus=host.nvidia_cards())
    version = ask(lambda: _text(driver.library.nvmlSystemGetDriverVersion()))
    cuda = ask(lambda: _cuda_version(driver.library.nvmlSystemGetCudaDriverVersion()))
    count = ask(driver.library.nvmlDeviceGetCount) or 0
    found = tuple(gpu for index in range(count) if (gpu := _gpu(index, version, cuda)) is not None)
    if found:
        return Cards(gpus=found, driver=version, driver_cuda=cuda, on_the_bus=host.nvidia_cards())
    fault: Fault = "lost" if count else "no_card"
    reason = "the driver has lost its card" if count else "the driver finds no card"
    return Cards(driver=version, driver_cuda=cuda, fault=fault, reason=reason, on_the_bus=host.nvidia_cards())


def _gpu(index: int, version: str | None, cuda: str | None) -> Gpu | None:
    handle = ask(lambda: driver.library.nvmlDeviceGetHandleByIndex(index))
    if handle is None:
        return None
    milliwatts = ask(lambda: driver.library.nvmlDeviceGetEnforcedPowerLimit(handle))
    capability = ask(lambda: driver.library.nvmlDeviceGetCudaComputeCapability(handle))
    return Gpu(
        index=index,
        name=ask(lambda: _text(driver.library.nvmlDeviceGetName(handle))),
        uuid=ask(lambda: _text(driver.library.nvmlDeviceGetUUID(handle))),
        memory_bytes=ask(lambda: int(driver.library.nvmlDeviceGetMemoryInfo(handle).total)),
        driver=version,
        driver_cuda=cuda,
        power_limit_watts=None if milliwatts is None else milliwatts / 1000,
        max_sm_clock=ask(lambda: float(driver.library.nvmlDeviceGetMaxClockInfo(handle, driver.library.NVML_CLOCK_SM))),
        max_memory_clock=ask(
            lambda: float(driver.library.nvmlDeviceGetMaxClockInfo(handle, driver.library.NVML_CLOCK_MEM))
        ),
        compute_capability=None if capability is None else f"{capability[0]}.{capability[1]}",
        mig=ask(lambda: bool(driver.library.nvmlDeviceGetMigMode(handle)[0])),
    )


def processes(uuid: object) -> list[GpuProcess] | None:
    """Every process with memory on the card, by process number; None where the driver does not tell."""
    handle = driver.handle(uuid)
    if handle is None:
        return None
    kinds = (driver.library.nvmlDeviceGetComputeRunningProcesses, driver.library.nvmlDeviceGetGraphicsRunningProcesses)
    answers = [answer for kind in kinds if (answer := ask(lambda kind=kind: kind(handle))) is not None]  # type: ignore[misc]
    if not answers:
        return None
    used: dict[int, int | None] = {}
    for process in (process for answer in answers for process in answer):
        # a process that computes and draws is listed twice, each time with all that it holds
        figures = [figure for figure in (used.get(process.pid), process.usedGpuMemory) if figure is not None]
        used[process.pid] = max(figures, default=None)
    return [GpuProcess(pid=pid, name=_process_name(pid), used=figure) for pid, figure in sorted(used.items())]


def reading(uuid: object, *, count_processes: bool = True) -> Reading | None:
    """The card's figures now, in about 0.1 ms; None where there is no such card or no driver."""
    handle = driver.handle(uuid)
    if handle is None:
        return None

    def figure(what: str, question: Callable[[], float]) -> float | None:
        return driver.figure(uuid, what, question)

    used, total = memory(uuid)
    receive, send = _pcie_rates(uuid, handle)
    others = _other_pids(uuid, handle) if count_processes else None
    return Reading(
        utilisation=figure("utilisation", lambda: driver.library.nvmlDeviceGetUtilizationRates(handle).gpu / 100),
        watts=figure("watts", lambda: driver.library.nvmlDeviceGetPowerUsage(handle) / 1000),
        celsius=figure(
            "celsius",
            lambda: float(driver.library.nvmlDeviceGetTemperature(handle, driver.library.NVML_TEMPERATURE_GPU)),
        ),
        sm_mhz=figure("sm", lambda: float(driver.library.nvmlDeviceGetClockInfo(handle, driver.library.NVML_CLOCK_SM))),
        memory_mhz=figure(
            "mem", lambda: float(driver.library.nvmlDeviceGetClockInfo(handle, driver.library.NVML_CLOCK_MEM))
        ),
        clock_limits=_clock_limits(uuid, handle),
        energy_joules=figure("energy", lambda: driver.library.nvmlDeviceGetTotalEnergyConsumption(handle) / 1000),
        pcie_receive=receive,
        pcie_send=send,
        memory_used=used,
        memory_total=total,
        other_processes=None if others is None else len(others),
    )


def memory(uuid: object) -> tuple[int | None, int | None]:
    """Bytes of the card's memory in use by everyone, and all there are."""
    handle = driver.handle(uuid)
    found = driver.figure(uuid, "memory", lambda: driver.library.nvmlDeviceGetMemoryInfo(handle)) if handle else None
    return (None, None) if found is None else (int(found.used), int(found.total))


def strain(uuid: object, since: float | None = None) -> Strain | None:
    """What may be disturbing the card now; cheap enough to be read right before and after what is timed.

    ``since`` (seconds since 1970) is from when on the other processes' share of the card is looked at.
    """
    handle = driver.handle(uuid)
    if handle is None:
        return None

    def others() -> float | None:
        return _others_utilisation(handle, since) if since is not None else None

    return Strain(
        clock_limits=_clock_limits(uuid, handle),
        sm_mhz=driver.figure(
            uuid, "sm", lambda: float(driver.library.nvmlDeviceGetClockInfo(handle, driver.library.NVML_CLOCK_SM))
        ),
        max_sm_mhz=driver.figure(
            uuid,
            "max sm",
            lambda: float(driver.library.nvmlDeviceGetMaxClockInfo(handle, driver.library.NVML_CLOCK_SM)),
        ),
        slowed_ns=driver.figure(uuid, "slowed", lambda: _slowed_ns(handle)),
        others_utilisation=ask(others),
    )


def _clock_limits(uuid: object, handle: object) -> tuple[str, ...] | None:
    def bits() -> int:
        # the library's name for it changed with CUDA 12; the old one remains in old drivers
        new = ask(lambda: int(driver.library.nvmlDeviceGetCurrentClocksEventReasons(handle)))
        return int(driver.library.nvmlDeviceGetCurrentClocksThrottleReasons(handle)) if new is None else new

    found = driver.figure(uuid, "clock limits", bits)
    return None if found is None else clock_limits(found)


def clock_limits(bits: int) -> tuple[str, ...]:
    """What holds the clocks down, in words; being idle is no limit."""
    return tuple(word for bit, word in CLOCK_LIMITS.items() if bits & bit)


def _slowed_ns(handle: object) -> int | None:
    """Nanoseconds that heat or a power brake held the clocks down, since the driver started."""
    counters = _fields(handle, _SLOWED_FIELDS)
    known = [counter for counter in counters if counter is not None]
    if known:
        return max(known)
    thermal = driver.library.nvmlDeviceGetViolationStatus(handle, driver.library.NVML_PERF_POLICY_THERMAL)
    return int(thermal.violationTime)


def _fields(handle: object, numbers: Iterable[int]) -> list[int | None]:
    """Counters by their field numbers, in one question."""
    found = driver.library.nvmlDeviceGetFieldValues(handle, list(numbers))
    return [int(field.value.ullVal) if field.nvmlReturn == 0 else None for field in found]


def _pcie_rates(uuid: object, handle: object) -> tuple[float | None, float | None]:
    """Bytes a second to and from the card since the last reading, from the card's counters.

    The other way to ask, nvmlDeviceGetPcieThroughput, watches the bus for 20 ms each way: too long beside training.
    """
    counted = driver.figure(uuid, "pcie", lambda: _counted(_fields(handle, _PCIE_FIELDS)))
    if counted is None:
        return None, None
    now, key = time.monotonic(), str(uuid)
    before = driver.pcie.get(key)
    driver.pcie[key] = (now, *counted)
    if before is None or now <= before[0]:
        return None, None
    rates = [(new - old) / (now - before[0]) for new, old in zip(counted, before[1:], strict=True)]
    receive, send = (rate if rate >= 0 else None for rate in rates)  # a counter that wrapped round tells nothing
    return receive, send


def _counted(fields: list[int | None]) -> tuple[int, int] | None:
    receive, send = fields
    return None if receive is None or send is None else (receive, send)


def _compute_pids(handle: object) -> set[int] | None:
    """Who computes on the card; None where this process is not among them though it must be.

    In a container the driver may number processes as the host does: then ours cannot be told from others.
    """
    found = ask(lambda: {process.pid for process in driver.library.nvmlDeviceGetComputeRunningProcesses(handle)})
    return found if found is not None and os.getpid() in found else None


def _other_pids(uuid: object, handle: object) -> set[int] | None:
    found = driver.figure(uuid, "processes", lambda: _compute_pids(handle) or set())
    return found - {os.getpid()} if found else None


def _others_utilisation(handle: object, since: float) -> float | None:
    """The largest share of the card, 0 to 1, that other processes took in any of the driver's samples since then."""
    if _compute_pids(handle) is None:
        return None
    try:
        samples = driver.library.nvmlDeviceGetProcessUtilization(handle, int(since * 1e6))
    except Exception as error:
        # nobody has computed since then
        return 0.0 if getattr(error, "value", None) in (0, 6) else None
    return max((sample.smUtil / 100 for sample in samples if sample.pid != os.getpid()), default=0.0)


def _process_name(pid: int) -> str | None:
    return ask(lambda: str(psutil.Process(pid).name()) or None)


def _cuda_version(number: int) -> str:
    return f"{number // 1000}.{number % 1000 // 10}"


def _text(answer: str | bytes) -> str:
    return answer.decode(errors="replace") if isinstance(answer, bytes) else answer
