import pytest

from gpu_trainer_gui.monitor.diagnosis import (
    Facts,
    absence,
    paired,
    partly_hidden,
    pip_command,
    sticky,
    torchvision_trouble,
    trouble,
    unfit,
)
from gpu_trainer_gui.monitor.nvml import Cards, Gpu

CUDA = {"torch": "2.14.1+cu130", "torch_cuda": "13.0"}
CPU_ONLY = {"torch": "2.14.1+cpu"}
NOTHING = Cards(fault="no_driver", reason="NVIDIA's driver is not installed", on_the_bus=0)
NO_DRIVER = Cards(fault="no_driver", reason="NVIDIA's driver is not installed", on_the_bus=1)
MISMATCH = Cards(fault="mismatch", reason="the driver was updated while the computer ran: restart the computer")


def cards(driver_cuda="13.0", capability="8.6", **more):
    gpu = Gpu(index=0, name="NVIDIA RTX A2000", uuid="GPU-12", compute_capability=capability, **more)
    return Cards(gpus=(gpu,), driver="580.65", driver_cuda=driver_cuda)


@pytest.mark.parametrize(
    ("facts", "words"),
    [
        (Facts(**CUDA, hidden="they did not answer"), ["left alone", "they did not answer"]),
        (Facts(**CPU_ONLY, mac=True), ["Mac"]),
        (Facts(torch="2.14.1+rocm7", torch_hip="7.0", error="no device"), ["AMD", "no device"]),
        (Facts(**CUDA, cards=MISMATCH), ["updated", "restart the computer"]),
        (Facts(**CPU_ONLY, cards=NOTHING), ["No NVIDIA GPU", "CPU alone"]),
        (Facts(**CPU_ONLY, cards=NO_DRIVER), ["has an NVIDIA card", "driver must be installed", "pip install"]),
        (Facts(**CPU_ONLY, cards=cards()), ["RTX A2000", "pip install", "download.pytorch.org/whl/cu130"]),
        (Facts(**CPU_ONLY, cards=cards("12.4")), ["whl/cu126"]),
        (Facts(**CPU_ONLY, cards=cards("12.8", "12.0")), ["whl/cu128"]),
        (Facts(**CPU_ONLY, cards=cards("13.0", "6.1")), ["whl/cu126"]),
        (Facts(**CUDA, cards=NOTHING), ["No NVIDIA GPU", "not installed"]),
        (Facts(**CUDA, cards=NO_DRIVER), ["has an NVIDIA card", "install the driver"]),
        (Facts(**CUDA, cards=Cards(fault="no_card", driver="580.65")), ["580.65", "finds no card"]),
        (Facts(**CUDA, cards=cards(), visible=""), ["CUDA_VISIBLE_DEVICES", "''", "RTX A2000"]),
        (Facts(**CUDA, cards=cards(), visible="-1"), ["CUDA_VISIBLE_DEVICES", "'-1'"]),
        (Facts(**CUDA, cards=cards(), visible="3,0"), ["CUDA_VISIBLE_DEVICES", "'3,0'"]),
        (Facts(**CUDA, cards=cards(), visible="GPU-99"), ["CUDA_VISIBLE_DEVICES"]),
        (Facts(**CUDA, cards=cards("12.2")), ["too old", "580.65", "12.2", "13.0", "whl/cu126"]),
        (Facts(**CUDA, error="The NVIDIA driver on your system is too old (found version 11040)"), ["too old", "13.0"]),
        (Facts(**CUDA, cards=cards("11.4")), ["too old", "Update the driver"]),
        (Facts(**CUDA, cards=cards(mig=True)), ["MIG", "no slice"]),
        (Facts(**CUDA, cards=cards(), error="CUDA unknown error - this may be"), ["slept", "restart the computer"]),
        (Facts(**CUDA, cards=cards(), visible="0", error="Odd\nmore"), ["cannot use NVIDIA RTX A2000: Odd"]),
        (Facts(**CUDA, cards=Cards(fault="no_package", reason="nvidia-ml-py is not installed")), ["nvidia-ml-py"]),
    ],
)
def test_every_case_is_told_in_words(facts, words):
    told = absence(facts)
    for word in words:
        assert word in told
    assert "\n" not in told
    assert "None" not in told


def test_a_driver_of_the_same_major_version_is_not_too_old():
    assert "too old" not in absence(Facts(torch="2.9.0+cu128", torch_cuda="12.8", cards=cards("12.2"), error="x"))


def test_a_driver_that_no_cuda_12_wheel_runs_on_is_offered_none():
    assert "pip install" not in absence(Facts(**CUDA, cards=cards("11.4")))


@pytest.mark.parametrize(
    ("capability", "codes", "word"),
    [
        ("6.1", ("sm_75", "sm_80", "sm_120"), "too old"),
        ("7.5", ("sm_75", "sm_80"), ""),
        ("8.9", ("sm_75", "sm_80"), ""),
        ("8.0", ("sm_75", "sm_86", "sm_90"), "no code"),
        ("12.0", ("sm_75", "sm_90"), "newer build"),
        ("12.0", ("sm_75", "compute_90"), ""),
        ("9.0", ("sm_80", "sm_90a"), ""),
        ("9.0", (), ""),
        (None, ("sm_75",), ""),
    ],
)
def test_a_card_is_held_against_what_torch_was_built_for(capability, codes, word):
    told = unfit(capability, codes, "2.14.1")
    assert word in told
    assert bool(told) == bool(word)


@pytest.mark.parametrize(
    ("error", "word"),
    [
        ("CUDA error: no kernel image is available for execution on the device\nhint", "no code for the card"),
        ("CUDA out of memory. Tried", "memory is full"),
        ("CUDA error: all CUDA-capable devices are busy or unavailable", "exclusive mode"),
        ("cuDNN error: CUDNN_STATUS_SUBLIBRARY_VERSION_MISMATCH", "library path"),
        ("CUDA error: uncorrectable ECC error encountered", "memory has errors"),
        ("CUDA unknown error", "restart the computer"),
        ("a training step did not end within 60 s", "did not end within 60 s"),
        ("something else", "something else"),
    ],
)
def test_a_failed_step_is_told_in_words(error, word):
    told = trouble(error)
    assert word in told
    assert "\n" not in told


def test_what_spoils_the_process_is_known():
    assert sticky("CUDA error: an illegal memory access was encountered")
    assert not sticky("CUDA error: no kernel image is available")


def test_hidden_cards_are_counted():
    assert "1 of 2" in partly_hidden("0", 1, 2)
    assert not partly_hidden(None, 1, 2)
    assert not partly_hidden("0,1", 2, 2)


@pytest.mark.parametrize(
    ("torch", "torchvision", "fits"),
    [
        ("2.14.1", "0.29.1", True),
        ("2.9.0+cpu", "0.24.0+cpu", True),
        ("2.13.0+cpu", "0.28.0", False),
        ("2.14.1", "0.28.0", False),
        ("3.0.0", "1.0.0", None),
        ("nightly", "0.29.1", None),
    ],
)
def test_releases_come_in_pairs(torch, torchvision, fits):
    assert paired(torch, torchvision) is fits


def test_a_torchvision_that_does_not_fit_is_told_with_both_versions():
    told = torchvision_trouble("2.13.0+cpu", "0.29.1", "operator torchvision::nms does not exist\nmore")
    for word in ("2.13.0+cpu", "0.29.1", "torchvision::nms", "0.28"):
        assert word in told
    assert "not installed" in torchvision_trouble("2.13.0", None, "")


def test_pip_is_told_the_newest_build_where_nothing_is_known():
    assert "whl/cu130" in pip_command(None)
