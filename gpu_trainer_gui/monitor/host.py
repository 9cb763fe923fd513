"""What the computer itself says, through psutil and the system's own files; what it does not tell is None."""

from __future__ import annotations

import functools
import math
import multiprocessing
import os
import platform
import re
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import psutil

from gpu_trainer_gui.monitor.driver import ask

T = TypeVar("T")
BATTERY_SECONDS = 2.0
"""A battery's state is asked for at most this often: on some laptops the answer takes milliseconds."""
CLOCK_SECONDS = 0.5
_CPUFREQ = Path("/sys/devices/system/cpu")
_THROTTLE = _CPUFREQ / "cpu0/thermal_throttle/package_throttle_total_time_ms"
_CGROUPS = Path("/sys/fs/cgroup")
_POWERCAP = Path("/sys/class/powercap")
_PCI = Path("/sys/bus/pci/devices")


@functools.cache
def cpu_name() -> str | None:
    """The processor's name as its maker writes it."""
    match sys.platform:
        case "linux":
            found = ask(lambda: name_in_cpuinfo(Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")))
            found = found or ask(_name_in_lscpu)
        case "darwin":
            found = ask(lambda: _output("sysctl", "-n", "machdep.cpu.brand_string"))
        case "win32":
            found = ask(_name_in_registry)
        case _:
            found = None
    name = " ".join((found or platform.processor() or platform.machine()).split())
    return re.sub(r"\((R|TM)\)", "", name, flags=re.IGNORECASE) or None


def name_in_cpuinfo(text: str) -> str | None:
    """The name in the text of /proc/cpuinfo: each architecture spells the line's title differently."""
    for title in ("model name", "Model", "cpu model", "cpu", "Processor"):
        found = re.search(rf"^{title}\s*:\s*(.*\S)\s*$", text, re.MULTILINE)
        if found and not found[1].isdigit():
            return found[1]
    return None


def cores() -> int | None:
    """Physical cores."""
    return ask(lambda: psutil.cpu_count(logical=False))


def all_threads() -> int | None:
    """Hardware threads of the whole machine."""
    return ask(lambda: psutil.cpu_count())


def usable_threads() -> int | None:
    """Hardware threads that this process may use: what the system has, less affinity, less a container's quota."""
    allowed = ask(lambda: len(psutil.Process().cpu_affinity())) or psutil.cpu_count()
    quota = _quota()
    if allowed is None or quota is None:
        return allowed
    return max(1, min(allowed, math.ceil(quota)))


def _quota() -> float | None:
    """CPUs that the process's control group (version 2 or 1), or one above it, allows; None without a limit."""
    own = ask(lambda: Path("/proc/self/cgroup").read_text(encoding="utf-8")) or ""
    limits = []
    for line in own.splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers and "cpu" not in controllers.split(","):
            continue
        root = _CGROUPS / controllers if controllers else _CGROUPS
        folder = root / path.lstrip("/")
        # within a container the path is often that of the host; then the root is the container's own group
        for place in (folder, *folder.parents):
            limits += [limit for limit in (quota_of(place),) if limit is not None]
            if place == root:
                break
    return min(limits, default=None)


def quota_of(group: Path) -> float | None:
    """The limit of one control group, in CPUs."""
    newer = ask(lambda: (group / "cpu.max").read_text(encoding="ascii").split())
    if newer is not None:
        return ask(lambda: int(newer[0]) / int(newer[1]))  # "max" is no number: no limit
    quota = ask(lambda: int((group / "cpu.cfs_quota_us").read_text(encoding="ascii")))
    period = ask(lambda: int((group / "cpu.cfs_period_us").read_text(encoding="ascii")))
    return quota / period if quota and period and quota > 0 else None


def memory_bytes() -> int | None:
    """The computer's memory."""
    return ask(lambda: int(psutil.virtual_memory().total))


def resident_bytes(pid: int | None = None) -> int | None:
    """What a process (this one by default) holds of the computer's memory."""
    return ask(lambda: int(psutil.Process(pid).memory_info().rss))


def nvidia_cards() -> int | None:
    """NVIDIA's display controllers that the system sees, with or without a driver; None where it cannot be told."""
    if not _PCI.is_dir():
        return None
    nvidias = (folder for folder in _PCI.iterdir() if _line(folder / "vendor") == "0x10de")
    return sum(_line(folder / "class").startswith("0x03") for folder in nvidias)


class _Slow:
    """Answers that are kept for a while, since asking costs milliseconds."""

    def __init__(self) -> None:
        self._battery: tuple[float, bool | None] | None = None
        self._mhz: tuple[float, float | None] | None = None

    def on_battery(self) -> bool | None:
        now = time.monotonic()
        if self._battery is None or now - self._battery[0] > BATTERY_SECONDS:
            self._battery = (now, ask(_on_battery))
        return self._battery[1]

    def mhz(self) -> float | None:
        now = time.monotonic()
        if self._mhz is None or now - self._mhz[0] > CLOCK_SECONDS:
            self._mhz = (now, ask(_mhz))
        return self._mhz[1]


_slow = _Slow()


def on_battery() -> bool | None:
    """Whether a battery feeds the computer now; None where there is none or it cannot be told."""
    return _slow.on_battery()


def mhz() -> float | None:
    """The processor's clock now: the mean of a few of the threads that this process may use."""
    return _slow.mhz()


def _on_battery() -> bool | None:
    battery = psutil.sensors_battery()
    plugged = None if battery is None else battery.power_plugged
    return None if plugged is None else not plugged


def _mhz() -> float | None:
    if sys.platform == "linux":
        # psutil reads a file for every thread of the machine: 10 ms where there are many
        files = [_CPUFREQ / f"cpu{cpu}/cpufreq/scaling_cur_freq" for cpu in sorted(os.sched_getaffinity(0))[:8]]
        found = [khz for file in files if (khz := _number(file)) is not None]
        if found:
            return sum(found) / len(found) / 1000
    frequency = psutil.cpu_freq()
    return float(frequency.current) if frequency and frequency.current else None


def throttled_ms() -> int | None:
    """Milliseconds that heat held the processor's clocks down since the start; Intel under Linux alone tells."""
    return _number(_THROTTLE)


@dataclass(frozen=True, slots=True, kw_only=True)
class CpuTimes:
    """Seconds of processor time since the start: of the whole machine, and of this process with its workers."""

    busy: float
    total: float
    ours: float


def cpu_times() -> CpuTimes | None:
    """Where the machine's processor time has gone so far; None where the system does not count."""
    times = ask(psutil.cpu_times)
    if times is None:
        return None
    # a guest's time is counted in its host's user time already
    parts = {name: value for name, value in times._asdict().items() if not name.startswith("guest")}
    total = sum(parts.values())
    idle = parts.get("idle", 0.0) + parts.get("iowait", 0.0)
    own = os.times()
    ours = own.user + own.system + own.children_user + own.children_system
    for worker in multiprocessing.active_children():
        used = ask(lambda worker=worker: psutil.Process(worker.pid).cpu_times())  # type: ignore[misc]
        ours += used.user + used.system if used is not None else 0.0
    return CpuTimes(busy=total - idle, total=total, ours=ours) if total > 0 else None


class CpuMeter:
    """The share of the machine's processor time that was used since the last reading."""

    def __init__(self) -> None:
        self._before = cpu_times()

    def utilisation(self) -> float | None:
        """From 0 to 1; None where no time has passed by the system's count."""
        now, before = cpu_times(), self._before
        if now is None or before is None or now.total <= before.total:
            return None
        self._before = now
        return min(1.0, max(0.0, (now.busy - before.busy) / (now.total - before.total)))


class EnergyMeter:
    """The processor packages' energy counters (RAPL), unwrapped; most systems let only root read them."""

    def __init__(self, root: Path = _POWERCAP) -> None:
        # intel-rapl:0 is a package; intel-rapl:0:1 is a part of it; AMD's use the same name
        zones = sorted(root.glob("intel-rapl:*")) if root.is_dir() else []
        self._zones = [zone for zone in zones if zone.name.count(":") == 1 and _is_package(zone)]
        self._ranges = [_number(zone / "max_energy_range_uj") for zone in self._zones]
        self._last = [_number(zone / "energy_uj") for zone in self._zones]
        self._joules = 0.0

    def joules(self) -> float | None:
        """Joules since this meter was made; None where no counter can be read."""
        if not self._zones or None in self._last:
            return None
        for place, zone in enumerate(self._zones):
            now, last = _number(zone / "energy_uj"), self._last[place]
            if now is None or last is None:
                return None
            step = now - last
            if step < 0:
                step += self._ranges[place] or 0
            self._joules += max(0, step) / 1e6
            self._last[place] = now
        return self._joules


def _is_package(zone: Path) -> bool:
    return _line(zone / "name").startswith("package")


def _line(path: Path) -> str:
    """A small file's text; empty where it cannot be read."""
    return ask(lambda: path.read_text(encoding="ascii").strip()) or ""


def _number(path: Path) -> int | None:
    return ask(lambda: int(path.read_text(encoding="ascii")))


def _name_in_lscpu() -> str | None:
    found = re.search(r"^Model name:\s*(.*\S)\s*$", _output("lscpu"), re.MULTILINE)
    return found[1] if found else None


def _name_in_registry() -> str | None:
    if sys.platform == "win32":
        import winreg

        place = r"HARDWARE\DESCRIPTION\System\CentralProcessor\0"
        with winreg.OpenKey(winreg.HKEY_LOCAL_MACHINE, place) as key:
            return str(winreg.QueryValueEx(key, "ProcessorNameString")[0])
    return None


def _output(*command: str) -> str:
    """What a small system tool prints, in English."""
    environment = {**os.environ, "LC_ALL": "C"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=2, check=True, env=environment)
    return done.stdout.strip()
