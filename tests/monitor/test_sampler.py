import subprocess
import sys

import pytest

from gpu_trainer_gui.monitor.host import CpuTimes
from gpu_trainer_gui.monitor.nvml import Strain
from gpu_trainer_gui.monitor.sampler import Moment, Sampler, disturbances, others_threads


def moments(seconds=10.0, others=0.0, threads=8, all_threads=8, on_gpu=False, first=None, last=None, **after):
    """Two moments between which others kept so many threads busy, and we kept two."""
    before = Moment(
        at=0, cpu=CpuTimes(busy=0, total=0.1, ours=0), threads=threads, all_threads=all_threads, on_gpu=on_gpu,
        strain=first, cpu_throttled_ms=0,
    )  # fmt: skip
    times = CpuTimes(busy=(2 + others) * seconds, total=all_threads * seconds, ours=2 * seconds)
    return before, Moment(
        at=seconds, cpu=times, threads=threads, all_threads=all_threads, on_gpu=on_gpu, strain=last, **after
    )


def test_nothing_known_raises_no_flag():
    assert disturbances(Moment(at=0), Moment(at=1)) == ()
    assert disturbances(Moment(at=0, on_gpu=True), Moment(at=1, on_gpu=True)) == ()


@pytest.mark.parametrize(
    ("others", "seconds", "more", "busy"),
    [
        (0.7, 10, {}, False),
        (1.0, 10, {}, True),
        (1.0, 0.1, {}, False),  # too short to tell
        (0.4, 10, {"threads": 2, "all_threads": 2}, False),  # the window's own share
        (0.6, 10, {"threads": 2, "all_threads": 2}, True),
        (30, 10, {"threads": 4, "all_threads": 64}, False),  # room enough beside a container of 4
        (61, 10, {"threads": 4, "all_threads": 64}, True),
        (3, 10, {"on_gpu": True}, False),
        (5, 10, {"on_gpu": True}, True),
    ],
)
def test_a_busy_cpu_is_flagged(others, seconds, more, busy):
    assert ("busy_cpu" in disturbances(*moments(seconds, others, **more))) is busy


@pytest.mark.parametrize(
    ("first", "last", "throttled"),
    [
        (Strain(slowed_ns=0), Strain(slowed_ns=400_000_000), False),
        (Strain(slowed_ns=0), Strain(slowed_ns=600_000_000), True),
        (Strain(slowed_ns=5), Strain(slowed_ns=5, clock_limits=("thermal slowdown",)), False),
        (None, Strain(clock_limits=("thermal slowdown",)), True),
        (None, Strain(clock_limits=("power brake",)), True),
        (None, Strain(clock_limits=("power cap",)), False),
        (None, Strain(clock_limits=("power cap",), sm_mhz=1800, max_sm_mhz=1980), False),
        (None, Strain(clock_limits=("power cap",), sm_mhz=1200, max_sm_mhz=1980), True),
        (None, Strain(clock_limits=(), sm_mhz=345, max_sm_mhz=1980), False),  # clocks fall when there is little to do
    ],
)
def test_a_throttled_gpu_is_flagged(first, last, throttled):
    assert ("throttled" in disturbances(*moments(on_gpu=True, first=first, last=last))) is throttled


def test_a_throttled_cpu_is_flagged():
    assert disturbances(*moments(cpu_throttled_ms=400)) == ()
    assert disturbances(*moments(cpu_throttled_ms=600)) == ("throttled",)


def test_a_card_that_others_compute_on_is_flagged():
    assert disturbances(*moments(on_gpu=True, last=Strain(others_utilisation=0.2))) == ("busy_gpu",)
    assert disturbances(*moments(on_gpu=True, last=Strain(others_utilisation=0.01))) == ()


def test_battery_power_is_flagged():
    assert disturbances(*moments(on_battery=True)) == ("battery",)
    assert disturbances(*moments(on_battery=False)) == ()


def test_a_real_process_beside_us_is_seen():
    sampler = Sampler()
    busy = "while True: pass"
    with subprocess.Popen([sys.executable, "-c", f"print('up', flush=True)\n{busy}"], stdout=subprocess.PIPE) as other:
        other.stdout.readline()
        before = after = sampler.moment()
        while after.cpu.total - before.cpu.total < 1.0 * after.all_threads:
            after = sampler.moment()
        other.kill()
    assert others_threads(before, after) > 0.2


def test_the_machine_is_sampled():
    sampler = Sampler()
    assert sampler.due()
    sample = sampler.hardware(1.5)
    assert sample.at == 1.5
    assert sample.gpu_watts is None
    assert not sampler.due() or sampler.hardware(2.0).at == 2.0
    memory = sampler.memory(2.5, "training")
    assert memory.host_rss > 2**20
    assert memory.device_used is None


def test_a_card_that_is_not_there_is_sampled_without_error():
    sampler = Sampler("GPU-none")
    assert sampler.hardware(0).gpu_utilisation is None
    assert sampler.memory(0).device_total is None
    assert disturbances(sampler.moment(), sampler.moment()) in ((), ("battery",))


def test_the_monitor_needs_neither_torch_nor_qt():
    code = (
        "import sys; from gpu_trainer_gui.monitor import diagnosis, environment, host, nvml, sampler;"
        "sys.exit(bool({'torch', 'PySide6'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
