import json
import subprocess
import sys
import threading

import pytest
import torch

from gpu_trainer_gui.engine import devices
from gpu_trainer_gui.runs.environment import Device, Environment
from gpu_trainer_gui.runs.events import Progress, WorkerReady, decode_event, encode
from gpu_trainer_gui.runs.job import JobError

CPU = Device(name="cpu", label="Some CPU", kind="cpu", usable=True)
CUDA = Device(name="cuda:0", label="Some GPU", kind="cuda", usable=True)


def found(*present, absence=""):
    here = Environment(program="test", python="3", system="here", gpu_absence=absence)
    return WorkerReady(devices=present, environment=here)


@pytest.fixture(scope="module")
def events():
    return list(devices.look())


def test_looking_ends_with_what_was_found(events):
    assert all(isinstance(event, Progress) for event in events[:-1])
    ready = events[-1]
    assert isinstance(ready, WorkerReady)
    assert decode_event(encode(ready)) == ready


def test_the_cpu_comes_first_and_a_step_has_run_on_it(events):
    cpu = events[-1].devices[0]
    assert cpu.name == "cpu"
    assert cpu.usable
    assert cpu.probe_seconds > 0
    assert cpu.label


def test_the_environment_tells_what_torch_is_and_why_there_is_no_gpu(events):
    ready = events[-1]
    assert ready.environment.torch == str(torch.__version__)
    usable = any(device.is_gpu and device.usable for device in ready.devices)
    assert bool(ready.environment.gpu_absence) is not usable


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_every_cuda_device_is_tried(events):
    cards = [device for device in events[-1].devices if device.kind == "cuda"]
    assert len(cards) == torch.cuda.device_count()
    for card in cards:
        assert card.usable, card.reason
        assert card.memory_bytes > 2**30
        assert devices.uuid_of(card)
    here = events[-1].environment
    assert here.gpu == cards[0].label
    assert here.driver
    assert here.driver_cuda
    assert here.cudnn.count(".") == 2
    assert here.gpu_max_sm_clock_mhz > 100


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_real_card_is_sampled_quickly_and_nothing_disturbs_it():
    import time

    from gpu_trainer_gui.monitor.sampler import Sampler

    sampler = Sampler(torch.cuda.get_device_properties(0).uuid)
    devices.training_step(torch.device("cuda:0"))
    first = sampler.hardware(0.0)
    began = time.perf_counter()
    second = sampler.hardware(1.0)
    middle = time.perf_counter()
    moment = sampler.moment()
    print(f"hardware {(middle - began) * 1e3:.2f} ms, moment {(time.perf_counter() - middle) * 1e3:.2f} ms")
    print(first, second, moment, sampler.moment(), sep="\n")
    assert first.gpu_utilisation is not None
    assert 0 < sampler.memory(0.0).device_used <= sampler.memory(0.0).device_total


def test_hidden_gpus_are_not_touched_and_the_reason_is_given():
    ready = list(devices.look("they did not answer within 90 s"))[-1]
    assert [device.name for device in ready.devices] == ["cpu"]
    assert "they did not answer within 90 s" in ready.environment.gpu_absence


def test_a_device_that_fails_is_listed_with_the_reason_and_the_rest_stays_usable(monkeypatch):
    def failing(device):
        if device.type == "cuda":
            raise RuntimeError("CUDA error: no kernel image is available for execution on the device\nhint")

    monkeypatch.setattr(devices, "_candidates", lambda: ("", [CUDA]))
    monkeypatch.setattr(devices, "training_step", failing)
    ready = list(devices.look())[-1]
    assert [device.usable for device in ready.devices] == [True, False]
    assert ready.devices[1].reason
    assert "Some GPU cannot be used" in ready.environment.gpu_absence
    with pytest.raises(JobError, match=r"cuda:0 \(Some GPU\) cannot be used"):
        devices.find("cuda:0", ready)


def test_a_step_that_never_ends_makes_the_device_unusable(monkeypatch):
    released = threading.Event()
    monkeypatch.setattr(devices, "_candidates", lambda: ("", [CUDA]))
    monkeypatch.setattr(devices, "training_step", lambda device: device.type == "cuda" and released.wait())
    monkeypatch.setattr(devices, "PROBE_SECONDS", 2.0)
    try:
        events = list(devices.look())
    finally:
        released.set()
    assert [device.usable for device in events[-1].devices] == [True, False]
    assert "did not end within" in events[-1].devices[1].reason
    assert any(event.what == "Trying cuda:0" and event.done > 0 for event in events[:-1])


def test_a_driver_that_never_answers_is_given_up(monkeypatch):
    released = threading.Event()
    monkeypatch.setattr(devices, "_candidates", released.wait)
    monkeypatch.setattr(devices, "PROBE_SECONDS", 1.0)
    try:
        ready = list(devices.look())[-1]
    finally:
        released.set()
    assert [device.name for device in ready.devices] == ["cpu"]
    assert ready.environment.gpu_absence


def test_after_an_error_that_spoils_the_process_the_others_must_show_that_they_still_work(monkeypatch):
    second = Device(name="cuda:1", label="Other GPU", kind="cuda", usable=True)
    tried = []

    def step(device):
        tried.append(str(device))
        if str(device) == "cuda:1" or tried.count("cuda:0") == 2:
            raise RuntimeError("CUDA error: an illegal memory access was encountered")

    monkeypatch.setattr(devices, "_candidates", lambda: ("", [CUDA, second]))
    monkeypatch.setattr(devices, "training_step", step)
    ready = list(devices.look())[-1]
    assert tried == ["cpu", "cuda:0", "cuda:1", "cuda:0"]
    assert [device.usable for device in ready.devices] == [True, False, False]


def test_the_training_step_leaves_the_random_state_alone():
    before = torch.get_rng_state()
    devices.training_step(torch.device("cpu"))
    assert torch.equal(before, torch.get_rng_state())


def test_a_device_is_found_by_its_name():
    ready = found(CPU, CUDA)
    assert devices.find("cpu", ready) is CPU
    assert devices.find("cuda", ready) is CUDA
    assert devices.find("cuda:0", ready) is CUDA


def test_a_device_that_is_not_there_is_answered_with_those_that_are():
    with pytest.raises(JobError) as raised:
        devices.find("cuda:1", found(CPU, absence="No driver."))
    assert raised.value.field == "devices"
    for word in ("'cuda:1'", "cpu (Some CPU)", "No driver."):
        assert word in raised.value.message


def test_the_command_prints_json_and_nothing_else():
    done = subprocess.run(
        [sys.executable, "-m", "gpu_trainer_gui", "devices", "--json"], capture_output=True, text=True, check=True
    )
    told = json.loads(done.stdout)
    assert told["schema"] == 1
    assert told["devices"][0]["name"] == "cpu"
    assert told["environment"]["torch"]


def test_the_command_prints_the_reasons(capsys):
    from gpu_trainer_gui.commands import devices as command

    old = Device(name="cuda:0", label="GTX [old]", kind="cuda", usable=False, reason="the card is too old")
    ready = found(CPU, old, absence="GTX cannot be used: the card is too old.")
    assert "cuda:0 cannot be used: the card is too old" in command.sentences(ready)
    assert found(CPU, absence="No driver.").environment.gpu_absence in command.sentences(
        found(CPU, absence="No driver.")
    )
    from rich.console import Console

    Console(width=200).print(command.table(ready.devices))
    assert "GTX [old]" in capsys.readouterr().out
