"""How time is measured, and what a device does at best.

In: functions to call, bytes and FLOPs. Out: medians, and the share of a limit. `cpu_peaks.py` measures a CPU's limits,
`gpu_graphs.py` times CUDA graphs, `floors.py` compares a time with the least possible one.
"""
