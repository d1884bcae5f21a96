"""Tuning: search the knobs of a network's schedules on a device, and record what won.

In: a network, T, B, a device. Out: records. `tune_network.py` is what users call, `session.py` runs it: `workload.py`
says what is tuned, `search.py` what to try next, `journal.py` keeps what came. Devices: `cpu_builders.py` and
`cpu_worker.py`; `rpc.py`, `rpc_tracker.py` and `rpc_worker.py` for a farm; `gpu_plan.py` and `gpu_measure.py` for a GPU
elsewhere. `record_checks.py` checks old records, `plot.py` draws.
"""

from .tune_network import tune

__all__ = ["tune"]
