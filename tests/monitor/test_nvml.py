"""NVML against a stand-in library, since no machine has every card: each refusal must cost its own figure alone."""

import os
from types import SimpleNamespace

import pytest

from gpu_trainer_gui.monitor import nvml
from gpu_trainer_gui.monitor.driver import Driver, installed


class RefusedError(Exception):
    def __init__(self, value):
        super().__init__(f"error {value}")
        self.value = value


class Library:
    """One card that answers everything, but for the functions in ``refusing``."""

    NVML_CLOCK_SM, NVML_CLOCK_MEM, NVML_TEMPERATURE_GPU, NVML_PERF_POLICY_THERMAL = 1, 2, 0, 1

    def __init__(self, refusing=(), start=None, uuid="GPU-1234", pids=None):
        self.refusing, self.error, self.uuid = set(refusing), start, uuid
        self.pids = [os.getpid(), 1] if pids is None else pids
        self.asked = []
        self.bytes = 0

    def nvmlInit(self):
        if self.error:
            raise RefusedError(self.error)

    def __getattr__(self, name):
        if name not in ANSWERS:
            raise AttributeError(name)

        def call(*given):
            self.asked.append(name)
            if name in self.refusing:
                raise RefusedError(3)
            answer = ANSWERS[name]
            return answer(self, *given) if callable(answer) else answer

        return call


def _handle(library, uuid):
    if uuid != library.uuid:
        raise RefusedError(6)
    return "handle"


def _fields(library, handle, numbers):
    library.bytes += 1000
    return [SimpleNamespace(nvmlReturn=0, value=SimpleNamespace(ullVal=library.bytes)) for _ in numbers]


# what each function answers: a value, or what makes one of the library and the function's arguments
ANSWERS = {
    "nvmlSystemGetDriverVersion": b"580.65.06",
    "nvmlSystemGetCudaDriverVersion": 12080,
    "nvmlDeviceGetCount": 1,
    "nvmlDeviceGetHandleByIndex": "handle",
    "nvmlDeviceGetHandleByUUID": _handle,
    "nvmlDeviceGetName": b"NVIDIA H200",
    "nvmlDeviceGetUUID": lambda library, *_: library.uuid,
    "nvmlDeviceGetMemoryInfo": SimpleNamespace(used=10, total=100),
    "nvmlDeviceGetEnforcedPowerLimit": 700_000,
    "nvmlDeviceGetMaxClockInfo": 1980,
    "nvmlDeviceGetCudaComputeCapability": (9, 0),
    "nvmlDeviceGetMigMode": (0, 0),
    "nvmlDeviceGetUtilizationRates": SimpleNamespace(gpu=50),
    "nvmlDeviceGetPowerUsage": 350_500,
    "nvmlDeviceGetTemperature": 45,
    "nvmlDeviceGetClockInfo": 1500,
    "nvmlDeviceGetCurrentClocksEventReasons": 1,
    "nvmlDeviceGetCurrentClocksThrottleReasons": 1,
    "nvmlDeviceGetTotalEnergyConsumption": 5000,
    "nvmlDeviceGetFieldValues": _fields,
    "nvmlDeviceGetViolationStatus": SimpleNamespace(violationTime=7),
    "nvmlDeviceGetComputeRunningProcesses": lambda library, *_: [
        SimpleNamespace(pid=pid, usedGpuMemory=5) for pid in library.pids
    ],
    "nvmlDeviceGetGraphicsRunningProcesses": [SimpleNamespace(pid=1, usedGpuMemory=None)],
    "nvmlDeviceGetProcessUtilization": [
        SimpleNamespace(pid=os.getpid(), smUtil=90),
        SimpleNamespace(pid=1, smUtil=20),
    ],
}
FIGURES = sorted(set(ANSWERS) - {"nvmlDeviceGetCount", "nvmlDeviceGetHandleByIndex", "nvmlDeviceGetHandleByUUID"})


@pytest.fixture
def plug(monkeypatch):
    def plugged(library):
        monkeypatch.setattr(nvml, "driver", Driver(library))
        return library

    return plugged


def test_this_machine_is_asked_without_error():
    found = nvml.gpus()
    assert found.gpus or found.reason
    for gpu in found.gpus:
        assert nvml.reading(gpu.uuid) is not None
    assert nvml.reading("no such card") is None
    assert nvml.processes("no such card") is None
    assert nvml.strain("no such card") is None


def test_a_card_is_described(plug):
    plug(Library())
    (gpu,) = nvml.gpus().gpus
    assert gpu == nvml.Gpu(
        index=0,
        name="NVIDIA H200",
        uuid="GPU-1234",
        memory_bytes=100,
        driver="580.65.06",
        driver_cuda="12.8",
        power_limit_watts=700,
        max_sm_clock=1980,
        max_memory_clock=1980,
        compute_capability="9.0",
        mig=False,
    )


def test_a_card_is_read(plug):
    plug(Library())
    first, second = nvml.reading("1234"), nvml.reading("1234")
    assert (first.utilisation, first.watts, first.celsius, first.sm_mhz, first.energy_joules) == (
        0.5,
        350.5,
        45,
        1500,
        5,
    )
    assert (first.memory_used, first.memory_total, first.other_processes) == (10, 100, 1)
    assert first.clock_limits == ()
    assert first.pcie_receive is None
    assert second.pcie_receive > 0


@pytest.mark.parametrize("uuid", ["1234", "GPU-1234"])
def test_torchs_spelling_of_a_uuid_is_understood(plug, uuid):
    plug(Library())
    assert nvml.reading(uuid) is not None


def test_a_slice_of_a_card_is_read(plug):
    plug(Library(uuid="MIG-1234", refusing=FIGURES[:-3]))
    assert nvml.reading("1234") is not None
    assert nvml.reading("MIG-1234") is not None
    assert nvml.reading("GPU-1234") is None


@pytest.mark.parametrize("refused", FIGURES)
def test_a_refusal_costs_its_own_figure_alone(plug, refused):
    plug(Library(refusing=[refused]))
    assert len(nvml.gpus().gpus) == 1
    reading = nvml.reading("1234")
    known = [getattr(reading, name) for name in ("utilisation", "watts", "celsius", "sm_mhz", "memory_used")]
    assert known.count(None) <= 1
    assert nvml.strain("1234", since=0) is not None
    assert nvml.processes("1234")


def test_a_driver_that_refuses_everything_leaves_nothing_known_and_raises_nothing(plug):
    plug(Library(refusing=FIGURES))
    assert nvml.gpus().gpus == (nvml.Gpu(index=0),)
    assert nvml.reading("1234") == nvml.Reading()
    assert nvml.processes("1234") is None
    assert nvml.strain("1234", since=0) == nvml.Strain()


def test_a_figure_refused_three_times_is_asked_for_no_more(plug):
    library = plug(Library(refusing=["nvmlDeviceGetPowerUsage"]))
    for _ in range(10):
        nvml.reading("1234")
    assert library.asked.count("nvmlDeviceGetPowerUsage") == 3


@pytest.mark.parametrize(
    ("number", "fault", "word"),
    [
        (18, "mismatch", "restart"),
        (9, "no_driver", "not loaded"),
        (12, "no_driver", "not installed"),
        (999, "other", ""),
    ],
)
def test_a_library_that_does_not_start_says_why(plug, number, fault, word):
    plug(Library(start=number))
    found = nvml.gpus()
    assert found.fault == fault
    assert word in found.reason
    assert nvml.reading("1234") is None


def test_without_the_package_that_is_said(plug):
    plug(None)
    assert nvml.gpus().fault == "no_package"
    assert nvml.processes("1234") is None


def test_a_lost_card_is_said(plug):
    plug(Library(refusing=["nvmlDeviceGetHandleByIndex"]))
    assert nvml.gpus().fault == "lost"


def test_idle_is_no_limit_and_the_others_have_words():
    assert nvml.clock_limits(0x1) == ()
    assert nvml.clock_limits(0x4 | 0x20) == ("power cap", "thermal slowdown")


def test_limits_are_numbered_as_the_library_numbers_them():
    library = installed()
    if library is None:
        pytest.skip("nvidia-ml-py is not installed")
    numbers = {number for name, number in vars(library).items() if name.startswith("nvmlClocksEventReason")}
    assert set(nvml.CLOCK_LIMITS) <= numbers
    assert library.nvmlClocksEventReasonGpuIdle not in nvml.CLOCK_LIMITS
    assert nvml.CLOCK_LIMITS[library.nvmlClocksEventReasonSwPowerCap] == "power cap"
    assert nvml.CLOCK_LIMITS[library.nvmlClocksEventReasonSwThermalSlowdown] == "thermal slowdown"


def test_processes_are_told_once_with_what_they_hold(plug):
    plug(Library())
    found = {process.pid: process.used for process in nvml.processes("1234")}
    assert found == {os.getpid(): 5, 1: 5}
    assert next(process.name for process in nvml.processes("1234") if process.pid == os.getpid())


def test_other_processes_are_unknown_where_ours_cannot_be_told_from_them(plug):
    plug(Library(pids=[1, 4_000_000]))
    assert nvml.reading("1234").other_processes is None
    assert nvml.strain("1234", since=0).others_utilisation is None


def test_the_others_share_of_the_card_is_told(plug):
    plug(Library())
    assert nvml.strain("1234").others_utilisation is None
    assert nvml.strain("1234", since=1.0).others_utilisation == 0.2
