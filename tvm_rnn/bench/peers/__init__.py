"""Other libraries with the same weights and inputs.

In: a network's weights. Out: a function to time. `models.py` gives weights to each library; `worker.py` is the process
of one library on the CPU, `streaming.py` steps it, `programs.py` does so in C and C++ (`whole_programs.py`: a
whole model), `node.py` in node, `generation.py` feeds it its own tokens; `small_engines.py` has ncnn and tract,
`litert.py` LiteRT; `cortex_m.py` runs plain C on a microcontroller, `cmsis_nn.py` has Arm's library for them;
`gpu.py` has the GPU's, with `cudnn.py`, `triton.py`, `images.py`, `members.py` and `neurons.py`; `torch_training.py`
has both passes of any cell.
"""
