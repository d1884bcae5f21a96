"""tune: search the knobs of a network's schedules for one T and B on this machine or on devices of its kind, and record
what won.

In: an RNN, a target, T, B, how much to try. Out: the record; files in a folder of records, which `compile` reads. What
it takes is imported by the call: this module is loaded with the package, because the function has its name.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tvm_rnn.network.rnn import RNN
    from tvm_rnn.records import Record
    from tvm_rnn.target import Target

    from .session import Status


def tune(
    net: RNN,
    target: str | Target = "llvm",
    steps: int = 128,
    batch: int = 16,
    trials: int = 200,
    *,
    seconds: float | None = None,
    patience: int | None = None,
    precision: str | None = None,
    records: str | os.PathLike[str] | None = None,
    seed: int = 0,
    jobs: int | None = None,
    timeout: float = 30.0,
    fresh: bool = False,
    rpc_tracker: str | None = None,
    device_key: str | None = None,
    progress: Callable[[Status], None] | None = None,
) -> list[Record]:
    """Find knob values that make a network faster than the defaults do, at T = steps and B = batch.

    Measures on this machine's CPU; or, with rpc_tracker and device_key, on all devices that have that key at TVM's RPC
    tracker, several side by side: they run `python -m tvm.exec.rpc_server` and need nothing of tvm_rnn. Every ratio is
    of times on one device. Ctrl-C ends the search, and what was found is compared and recorded as at its end; a second
    one ends that as well.

    Args:
        net: the RNN.
        target: as for `compile`: a CPU; with rpc_tracker the kind of the devices' CPUs.
        steps: T.
        batch: B.
        trials: candidates to measure at most.
        seconds: for all of it, about; None: as long as the trials take.
        patience: end after so many trials without anything better; None: a third of trials, at least 32.
        precision: as for `compile`.
        records: the folder to write to; None: the user's own, which `compile` reads.
        seed: of random weights where the network has none, of inputs, and of the search.
        jobs: compilations at a time; None: one per CPU.
        timeout: seconds that one candidate may take to compile or to answer.
        fresh: forget what an earlier run measured; else its journal counts, and a run that was stopped goes on where it
            was.
        rpc_tracker: "HOST:PORT" of a TVM RPC tracker.
        device_key: the key of the devices at the tracker.
        progress: called with a `Status`, which prints as one line.

    Returns:
        The record, in a list. Its gain is 1.0, and its knobs are the defaults', where nothing was surely faster.

    Raises:
        ConfigError: an argument is wrong, or the target, the tracker or its devices are not at hand.
        TvmRnnError: the defaults fail, or no device is left; the journal has what was measured till then.
    """
    from .session import SearchOptions, run

    options = SearchOptions(
        seconds=seconds,
        patience=patience,
        precision=precision,
        records=records,
        seed=seed,
        jobs=jobs,
        timeout=timeout,
        fresh=fresh,
        rpc_tracker=rpc_tracker,
        device_key=device_key,
        progress=progress,
    )
    return [run(net, target, steps, batch, trials, options).record]
