"""What is known of the machine a run was made on; everything unknown is None."""

from __future__ import annotations

import msgspec


class Device(msgspec.Struct, frozen=True, kw_only=True):
    """One device that training could run on.

    ``name`` is torch's own ("cpu", "cuda:0", "mps", "xpu:0"), ``label`` the vendor's ("NVIDIA H200").
    ``usable`` is true only when a real training step has run on it; ``reason`` says in words why not.
    """

    name: str
    label: str
    kind: str
    usable: bool
    reason: str = ""
    memory_bytes: int | None = None
    compute_capability: str | None = None
    probe_seconds: float | None = None

    @property
    def is_gpu(self) -> bool:
        return self.kind != "cpu"


class Environment(msgspec.Struct, frozen=True, kw_only=True):
    """The software and hardware of the machine; clocks in MHz, power in watts, memory in bytes."""

    program: str
    python: str
    system: str
    hostname_hash: str = ""
    torch: str | None = None
    torchvision: str | None = None
    numpy: str | None = None
    cuda: str | None = None
    cudnn: str | None = None
    cpu: str | None = None
    cpu_cores: int | None = None
    cpu_threads_usable: int | None = None
    cpu_mhz: float | None = None
    memory_bytes: int | None = None
    on_battery: bool | None = None
    gpu: str | None = None
    gpu_count: int | None = None
    driver: str | None = None
    driver_cuda: str | None = None
    gpu_memory_bytes: int | None = None
    gpu_power_limit_watts: float | None = None
    gpu_max_sm_clock_mhz: float | None = None
    gpu_max_memory_clock_mhz: float | None = None
    tf32: bool | None = None
    gpu_absence: str = ""
    """Why no GPU can be used here, in words; empty where one can."""
    complaints: tuple[str, ...] = ()
    """What is wrong with the installation though it can train, in words."""
