import os

import psutil
import pytest

from gpu_trainer_gui.monitor import environment, host
from gpu_trainer_gui.monitor.nvml import Cards, Gpu


def test_the_host_is_described():
    assert host.cpu_name()
    assert 1 <= host.usable_threads() <= host.all_threads()
    assert host.memory_bytes() > 2**28
    assert host.resident_bytes() > 2**20
    assert host.resident_bytes(os.getpid()) > 2**20
    assert host.mhz() is None or host.mhz() > 100
    assert host.on_battery() in (True, False, None)
    assert host.nvidia_cards() is None or host.nvidia_cards() >= 0


def test_a_process_that_is_gone_holds_nothing_known():
    assert host.resident_bytes(max(psutil.pids()) + 100_000) is None


@pytest.mark.parametrize(
    ("text", "name"),
    [
        (
            "processor\t: 0\nvendor_id\t: GenuineIntel\nmodel\t\t: 85\nmodel name\t: Intel(R) Xeon(R) X\n",
            "Intel(R) Xeon(R) X",
        ),
        ("processor\t: 0\nBogoMIPS\t: 108.00\nCPU part\t: 0xd08\n\nModel\t: Raspberry Pi 4\n", "Raspberry Pi 4"),
        ("processor\t: 0\ncpu\t\t: POWER9, altivec supported\n", "POWER9, altivec supported"),
        ("processor\t: 0\nCPU implementer\t: 0x41\n", None),
        ("", None),
    ],
)
def test_a_processor_is_named_as_its_maker_writes_it(text, name):
    assert host.name_in_cpuinfo(text) == name


@pytest.mark.parametrize(
    ("files", "limit"),
    [
        ({"cpu.max": "150000 100000\n"}, 1.5),
        ({"cpu.max": "max 100000\n"}, None),
        ({"cpu.cfs_quota_us": "400000\n", "cpu.cfs_period_us": "100000\n"}, 4.0),
        ({"cpu.cfs_quota_us": "-1\n", "cpu.cfs_period_us": "100000\n"}, None),
        ({"cpu.max": "damaged"}, None),
        ({}, None),
    ],
)
def test_a_containers_quota_is_read(tmp_path, files, limit):
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    assert host.quota_of(tmp_path) == limit


def test_utilisation_is_of_the_time_between_two_readings():
    meter = host.CpuMeter()
    began = host.cpu_times()
    while host.cpu_times().total - began.total < 0.3:
        sum(range(10_000))
    assert 0 < meter.utilisation() <= 1


def test_our_own_processor_time_is_told_from_the_others():
    before = host.cpu_times()
    while host.cpu_times().ours - before.ours < 0.2:
        sum(range(10_000))
    after = host.cpu_times()
    assert after.busy - before.busy > 0.1


def test_energy_is_summed_over_packages_and_over_the_counters_wrapping(tmp_path):
    for number, name in enumerate(("package-0", "package-1")):
        zone = tmp_path / f"intel-rapl:{number}"
        zone.mkdir()
        (zone / "name").write_text(f"{name}\n")
        (zone / "max_energy_range_uj").write_text("10000000\n")
        (zone / "energy_uj").write_text("9000000\n")
    (tmp_path / "intel-rapl:0:0").mkdir()
    meter = host.EnergyMeter(tmp_path)
    assert meter.joules() == 0
    (tmp_path / "intel-rapl:0" / "energy_uj").write_text("9500000\n")
    (tmp_path / "intel-rapl:1" / "energy_uj").write_text("1000000\n")
    assert meter.joules() == pytest.approx(0.5 + 2.0)
    (tmp_path / "intel-rapl:1" / "energy_uj").unlink()
    assert meter.joules() is None


def test_energy_is_unknown_without_a_counter(tmp_path):
    assert host.EnergyMeter(tmp_path).joules() is None
    assert host.EnergyMeter(tmp_path / "none").joules() is None


def test_the_environment_is_known_without_torch():
    here = environment.build()
    assert here.python
    assert here.system
    assert here.cpu == host.cpu_name()
    assert here.torch is None


def test_the_hosts_name_is_hashed():
    assert environment.hostname_hash("desk") == environment.hostname_hash("desk") != environment.hostname_hash("lap")
    assert "desk" not in environment.hostname_hash("desk")
    assert environment.hostname_hash("") == ""


def test_the_card_that_torch_uses_is_the_one_described():
    cards = Cards(gpus=(Gpu(index=0, name="small", uuid="GPU-1"), Gpu(index=1, name="large", uuid="GPU-2")))
    assert environment.described("2", cards).name == "large"
    assert environment.described("GPU-2", cards).name == "large"
    assert environment.described("MIG-3", cards) is None
    assert environment.described(None, cards).name == "small"
    assert environment.described(None, Cards()) is None
    assert environment.build(cards=cards, torch=environment.TorchFacts(uuid="2")).gpu == "large"
