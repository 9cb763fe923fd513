"""Says in words why a GPU cannot be used, and what to do: pure functions of facts."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from gpu_trainer_gui.monitor.nvml import Cards, Gpu

_INDEX = "https://download.pytorch.org/whl"
_BUILDS = "https://pytorch.org/get-started/locally"
_FIRST_PAIR = 15  # torchvision 0.15 came with torch 2.0, 0.16 with 2.1, and so on


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What is known when no GPU answers. ``error`` is what torch said when it was asked to start CUDA.

    ``visible`` is CUDA_VISIBLE_DEVICES (None: not set), ``hidden`` the reason for which the GPUs are left alone.
    """

    torch: str
    torch_cuda: str | None = None
    torch_hip: str | None = None
    cards: Cards = field(default_factory=Cards)
    visible: str | None = None
    error: str = ""
    hidden: str = ""
    mac: bool = False


def absence(facts: Facts) -> str:
    """Why no GPU is to be seen, in words, and what helps."""
    cards = facts.cards
    if facts.hidden:
        return f"The GPUs are left alone: {facts.hidden}"
    if facts.mac:
        return "PyTorch finds no GPU that it can use on this Mac: that takes Apple silicon and macOS 14 or later."
    if facts.torch_hip:
        return f"This PyTorch ({facts.torch}) is for AMD's GPUs, and none answers: {first_line(facts.error)}"
    if cards.fault in ("mismatch", "lost"):
        return f"NVIDIA's driver does not work: {cards.reason}."
    if facts.torch_cuda is None:
        return _cpu_only(facts)
    if _hides(facts.visible, cards):
        return (
            f"The environment variable CUDA_VISIBLE_DEVICES is set to {facts.visible!r} and hides every GPU "
            f"({_named(cards)}): unset it, or give it the number of a GPU."
        )
    if cards.fault in ("no_driver", "no_card"):
        return _no_driver(cards)
    too_old = _driver_too_old(facts)
    if too_old:
        return too_old
    if any(gpu.mig for gpu in cards.gpus):
        return (
            f"{_named(cards)} is set up for slices (MIG), and no slice is open to this program: "
            "make one with 'nvidia-smi mig -cgi', or turn slices off."
        )
    return _unexplained(facts)


def _cpu_only(facts: Facts) -> str:
    """This torch has no CUDA; whether that is a pity depends on the card."""
    if facts.cards.gpus:
        seen = f"the driver finds {_named(facts.cards)}"
    elif facts.cards.on_the_bus:
        seen = "this computer has an NVIDIA card (whose driver must be installed too)"
    else:
        return f"No NVIDIA GPU was found, and this PyTorch ({facts.torch}) is built for the CPU alone."
    card = facts.cards.gpus[0] if facts.cards.gpus else None
    return (
        f"This PyTorch ({facts.torch}) is built for the CPU alone, though {seen}. "
        f"Install its build for CUDA: {pip_command(facts.cards.driver_cuda, card)}"
    )


def _no_driver(cards: Cards) -> str:
    if cards.on_the_bus:
        return (
            f"This computer has an NVIDIA card, but {cards.reason}: install the driver "
            "(https://www.nvidia.com/drivers, or your distribution's package) and restart."
        )
    if cards.fault == "no_card":
        return f"NVIDIA's driver{f' {cards.driver}' if cards.driver else ''} is there, but it finds no card."
    return f"No NVIDIA GPU was found: {cards.reason}."


def _driver_too_old(facts: Facts) -> str:
    """CUDA keeps its promise within a major version: a driver for 12.2 runs what was built for 12.8."""
    offered, needed = facts.cards.driver_cuda, facts.torch_cuda or ""
    said = "too old" in facts.error
    if not said and (offered is None or _major(offered) >= _major(needed)):
        return ""
    version = facts.cards.driver
    driver = f"NVIDIA's driver {version}" if version else "NVIDIA's driver"
    limit = f" (CUDA {offered} at most)" if offered else ""
    card = facts.cards.gpus[0] if facts.cards.gpus else None
    advice = "Update the driver (https://www.nvidia.com/drivers)"
    if offered and _major(offered) >= 12:
        advice += f", or install a PyTorch for it: {pip_command(offered, card)}"
    return f"{driver} is too old{limit} for this PyTorch ({facts.torch}), which needs CUDA {needed}. {advice}"


def _unexplained(facts: Facts) -> str:
    """What torch itself said, with advice where the text is known."""
    if "unknown error" in facts.error:
        return (
            "The GPU answers with an unknown error, as it does after the computer has slept: "
            f"restart the computer. ({first_line(facts.error)})"
        )
    said = f": {first_line(facts.error)}" if facts.error else ", and does not say why"
    if facts.cards.gpus:
        return f"PyTorch ({facts.torch}) cannot use {_named(facts.cards)}{said}"
    unasked = f" ({facts.cards.reason})" if facts.cards.reason else ""
    return f"PyTorch ({facts.torch}) finds no GPU{said}{unasked}"


def pip_command(driver_cuda: str | None, card: Gpu | None = None) -> str:
    """What to type for a PyTorch that fits the driver and the card."""
    capability = _number(card.compute_capability) if card else None
    if capability is not None and capability < 75:
        tag = "cu126"  # the last to carry code for cards before Turing
    elif driver_cuda is None or _major(driver_cuda) >= 13:
        tag = "cu130"
    else:
        tag = "cu128" if capability is not None and capability >= 100 else "cu126"
    return (
        f"pip install --force-reinstall torch torchvision --index-url {_INDEX}/{tag} "
        f"(every build is listed at {_BUILDS})"
    )


def unfit(capability: str | None, codes: tuple[str, ...], torch: str) -> str:
    """Why this torch has no code for a card of this compute capability; empty where it has, or cannot be told.

    ``codes`` is torch's list of what it was built for: "sm_86" is machine code for 8.6 and above within 8,
    "compute_90" is code that any later card's driver translates.
    """
    own = _number(capability)
    built = [(kind, int(digits)) for kind, digits in re.findall(r"\b(sm|compute)_(\d+)", " ".join(codes))]
    if own is None or not built:
        return ""
    for kind, code in built:
        if code <= own and (kind == "compute" or code // 10 == own // 10):
            return ""
    lowest, highest = min(code for _, code in built), max(code for _, code in built)
    if own < lowest:
        card = Gpu(index=0, compute_capability=capability)
        return (
            f"the card is too old for this PyTorch ({torch}): its compute capability is {capability}, and this build "
            f"starts at {_dotted(lowest)}. An older build may still know it: {pip_command(None, card)}"
        )
    return (
        f"this PyTorch ({torch}) has no code for the card's compute capability {capability} (it has "
        f"{_dotted(lowest)} to {_dotted(highest)}): install a newer build, see {_BUILDS}"
    )


_TROUBLES = (
    (r"no kernel image", "this PyTorch has no code for the card"),
    (r"out of memory|ALLOC_FAILED", "its memory is full: another program holds it"),
    (r"busy or unavailable|exclusive", "another program holds the card for itself alone (exclusive mode)"),
    (r"CUDNN|cudnn", "cuDNN fails, as it does when another cuDNN is on the library path (LD_LIBRARY_PATH)"),
    (r"driver.*too old|insufficient", "NVIDIA's driver is too old for this PyTorch"),
    (r"ECC|uncorrectable", "its memory has errors: restart the computer, then have the card looked at"),
    (r"is lost|Xid|fallen off", "the card was lost: restart the computer"),
    (r"unknown error", "it answers with an unknown error, as after the computer has slept: restart the computer"),
)


def trouble(error: str, *, unfit_because: str = "") -> str:
    """Why a training step failed on a device, in words, from the error's text."""
    if unfit_because:
        return unfit_because
    line = first_line(error)
    for pattern, words in _TROUBLES:
        if re.search(pattern, error):
            return f"{words} ({line})"
    return f"a training step fails on it: {line}"


def sticky(error: str) -> bool:
    """Whether an error is of the kind after which every later CUDA call of the process may fail."""
    return bool(re.search(r"device-side assert|illegal|unspecified launch|is lost|uncorrectable|unknown error", error))


def partly_hidden(visible: str | None, seen: int, there: int) -> str:
    """That only some of the GPUs are shown to this program; empty where it is not so."""
    if visible is None or not 0 < seen < there:
        return ""
    return f"CUDA_VISIBLE_DEVICES is set to {visible!r}: this program sees {seen} of {there} GPUs."


def paired(torch: str, torchvision: str) -> bool | None:
    """Whether these two were released and built for each other; None where the numbers do not tell."""
    first, second = (re.match(r"(\d+)\.(\d+)", version) for version in (torch, torchvision))
    if not first or not second or first[1] != "2" or second[1] != "0":
        return None
    return int(second[2]) == int(first[2]) + _FIRST_PAIR and torch.partition("+")[2] == torchvision.partition("+")[2]


def torchvision_trouble(torch: str, torchvision: str | None, error: str) -> str:
    """What is wrong with torchvision beside this torch, in words, from the error that its import raised."""
    if torchvision is None:
        return "torchvision is not installed: ResNet-18 and fetching data sets need it (pip install torchvision)."
    wanted = re.match(r"2\.(\d+)", torch)
    fitting = f", as torchvision 0.{int(wanted[1]) + _FIRST_PAIR} is for this torch" if wanted else ""
    return (
        f"torchvision {torchvision} does not fit torch {torch} ({first_line(error)}). "
        f"Install both from one place{fitting}: pip install --force-reinstall torch torchvision"
    )


def first_line(text: str) -> str:
    return next((line.strip() for line in text.splitlines() if line.strip()), "")


def _hides(visible: str | None, cards: Cards) -> bool:
    """CUDA takes the numbers from the left up to the first that it cannot make out."""
    if visible is None or not cards.gpus:
        return False
    first = visible.split(",")[0].strip()
    if first.startswith(("GPU-", "MIG-")):
        return not any((gpu.uuid or "").startswith(first) for gpu in cards.gpus) and not first.startswith("MIG-")
    return not (first.isdigit() and int(first) < len(cards.gpus))


def _named(cards: Cards) -> str:
    names = dict.fromkeys(gpu.name or "an NVIDIA card" for gpu in cards.gpus)
    return ", ".join(names) or "an NVIDIA card"


def _major(version: str) -> int:
    found = re.match(r"\d+", version)
    return int(found[0]) if found else 0


def _number(capability: str | None) -> int | None:
    """ "8.6" as 86; "10.0" as 100."""
    found = re.fullmatch(r"(\d+)\.(\d)", capability or "")
    return int(found[1]) * 10 + int(found[2]) if found else None


def _dotted(code: int) -> str:
    return f"{code // 10}.{code % 10}"
