"""Withholds every other block of a run's epochs from whoever watches, to measure what watching costs.

One run, one process, epochs in turn: that is the only comparison in which the machine's drift cancels.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

import msgspec

from gpu_trainer_gui.runs.events import EpochDone, RunEvent, RunFailed, RunFinished

# Long enough that the window paints many times in a block, whatever an epoch takes.
BLOCK_SECONDS = 1.0
# After a live block the window has painted its last before the silent block's clock starts.
SETTLE_SECONDS = 0.3


def alternating(events: Iterator[RunEvent]) -> Iterator[RunEvent]:
    """The same events, but those of every other block come only when the block is over.

    Epochs are flagged "live" or "silent". The first epoch sets how many make a block and is flagged neither.
    """
    held: list[RunEvent] = []
    block: int | None = None
    left, silent = 0, False
    for event in events:
        if not isinstance(event, EpochDone):
            if silent and not isinstance(event, RunFinished | RunFailed):
                held.append(event)
                continue
            yield from held
            held.clear()
            yield event
            continue
        if block is None:
            block = max(1, round(BLOCK_SECONDS / max(event.seconds, 1e-6)))
            left = block
            yield event
            continue
        flag = "silent" if silent else "live"
        event = msgspec.structs.replace(event, flags=(*event.flags, flag))
        held.append(event)
        if not silent:
            yield from held
            held.clear()
        left -= 1
        if left == 0:
            yield from held
            held.clear()
            left, silent = block, not silent
            # the consumer is asked again only after this pause, which lies outside every epoch's clock
            time.sleep(SETTLE_SECONDS)
