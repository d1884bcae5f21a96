"""A benchmark from its suite to its tables.

In: points of a suite. Out: records, tables, pictures. `build_suite.py` compiles, `compare.py` times a module beside
its peers, `cpu_suite.py`, `audio_suite.py`, `browser_suite.py`, `generation_suite.py` and `gpu_suite.py` run all
points (`gpu_worker.py` is the process that uses the GPU), `training.py` times both passes, `models_suite.py` whole
models of packages, torch's (`whole_models.py`) and ONNX files (`onnx_files.py`; `onnx_streams.py`: in C),
`compile_times.py` compilation itself, `cortex_m_suite.py` counts a microcontroller's instructions, `first_call.py`
times a new process, `training_step.py` a step with its optimiser, `tables.py` and `plot.py` show what came.
"""
