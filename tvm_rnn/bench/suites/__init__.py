"""What benchmarks measure, as data: `gpu.py` has the suites of GPUs and what a point is, `cpu.py` those of CPUs,
`writers.py` cells that generate, `recurrences.py` linear recurrences alone, `headed_recurrences.py` those of several
heads, `neurons.py` spiking ones, `large_cells.py` cells from papers, `compile_times.py` what compiling is timed of,
`random_networks.py` networks as chance has them, `packages.py` whole models as packages have them,
`onnx_files.py` their ONNX files."""
