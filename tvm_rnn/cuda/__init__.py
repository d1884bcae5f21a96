"""Code for NVIDIA GPUs: kernels written through TVM's IR builder, and a host program in C++ that launches them.

In: graphs after the passes, and a GPU. Out: a module's file (`write_module.py`). Order of imports: codegen/ writes
kernels and texts; layer/ says where values lie; gemm/, rowwise/, linear/, matrix/ and persistent/ are kernels,
surroundings/ those around networks; model/ predicts times and chooses among them; plan/ puts layers and tiles of time
in order; training/ adds forward_train and backward.
"""
