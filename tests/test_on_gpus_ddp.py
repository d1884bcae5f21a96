"""Data-parallel training on two real GPUs over NCCL: DistributedDataParallel and FSDP2, a layer in each process.

Without a compiler there, run it once elsewhere with TVM_RNN_MODULES naming a folder, which it fills before it skips.
"""

from __future__ import annotations

from pathlib import Path

import pytest

pytestmark = pytest.mark.gpu
torch = pytest.importorskip("torch")


@pytest.mark.parametrize(
    ("regularised", "way"),
    [(False, "replicated"), (True, "replicated"), (False, "sharded")],
    ids=["plain", "regularised", "sharded"],
)
def test_two_gpus_train_as_one(regularised: bool, way: str, tmp_path: Path) -> None:
    """Parameters after some steps of SGD are the same bits in both processes, and up to rounding those of one GPU that
    does the work of both."""
    from gpu_modules import gpu_module
    from train_parallel import WORK, alone, spawn

    net = WORK["nccl"].net(regularised)
    gpu_module(f"parallel_{int(regularised)}", net, training=True)
    if torch.cuda.device_count() < 2:
        pytest.skip(f"needs two NVIDIA GPUs, and torch sees {torch.cuda.device_count()}")
    if not torch.distributed.is_available() or not torch.distributed.is_nccl_available():
        pytest.skip("this torch has no torch.distributed with NCCL")
    found, expected = spawn("nccl", tmp_path, regularised, way=way), alone("nccl", regularised, 2)
    for name, value in expected.items():
        assert torch.equal(found[0][name], found[1][name]), name
        change = float((value - torch.tensor(net.weights[name])).norm())
        assert change > 0 and float((found[0][name] - value).norm()) < 1e-4 * change, name
