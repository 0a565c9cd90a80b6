"""The PTX machine against the GPU: the same text, the same inputs, equal to rounding."""

import numpy as np
import pytest

pytestmark = pytest.mark.gpu

torch = pytest.importorskip("torch")
if not torch.cuda.is_available():
    pytest.skip("needs an NVIDIA GPU", allow_module_level=True)

import reference  # noqa: E402
from cases import CASES, bases, to_torch, views  # noqa: E402

MAX_SHARE = 0.01  # of elements that may differ at all


def ordered(array):
    """Bits as integers in the order of the numbers: neighbours differ by one."""
    bits = array.view({2: np.int16, 4: np.int32}[array.itemsize]).astype(np.int64)
    least = np.int64(1) << (8 * array.itemsize - 1)
    return np.where(bits < 0, -(bits + least), bits)


def references(case, args):
    """A bound of the fp32 error of each output element before its rounding."""
    if case.kernel == "matmul":
        return (reference.matmul(*args[:2]),)
    return reference.attention(*args[:3], args[-1])


def run_both(case):
    """The case's arguments after a run on the machine, and after one on the GPU, in NumPy."""
    kernel, host = case.spec.kernel, bases(case)
    device = [to_torch(array, "cuda") for array in host]
    on_device = views(case, device)
    on_host = views(case, host)
    result = kernel.simulate(*on_host, grid=case.grid, **case.options)
    assert not result.reports, str(result)
    kernel(*on_device, **case.options)
    torch.cuda.synchronize()
    return on_host, [reference.as_numpy(x) if torch.is_tensor(x) else x for x in on_device]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_machine_and_gpu_agree(case, capsys, record_property):
    machine, gpu = run_both(case)
    for index, exact in zip(case.spec.outputs, references(case, machine), strict=True):
        ours = np.ascontiguousarray(machine[index])
        theirs = np.ascontiguousarray(gpu[index])
        assert ours.dtype == theirs.dtype and not np.isnan(theirs.astype(np.float64)).any()
        units = np.abs(ordered(ours) - ordered(theirs))
        share, worst = float((units > 0).mean()), int(units.max())
        record_property("share", share)
        with capsys.disabled():
            print(f"\n{case} output {index}: {share:.4%} of {units.size} differ, by {worst} units")
        if ours.dtype == np.float32:  # a log-sum-exp: not rounded to 16 bits, so no units to count
            gap = np.abs(ours.astype(np.float64) - theirs)
            assert (gap <= 2 * exact.error + 1e-6).all(), f"log-sum-exp differs by {gap.max()}"
            continue
        assert share <= MAX_SHARE, f"{share:.3%} of the elements differ"
        # Where terms cancel, the fp32 error of either side exceeds a unit of what is left.
        gap = np.abs(ours.astype(np.float64) - theirs.astype(np.float64))
        cancelled = gap <= 2 * reference.accumulation(256) * magnitude(case, machine, exact)
        assert ((units <= 1) | cancelled).all(), f"by {worst} units"
        if case.integers:
            assert worst == 0, "whole numbers have exact sums"


def magnitude(case, args, exact):
    """Sum of the absolute values of what an output element adds up."""
    if case.kernel == "matmul":
        left, right = (np.abs(reference.as_float64(x)) for x in args[:2])
        return left @ right
    return np.broadcast_to(np.abs(exact.value).max(), exact.value.shape)
