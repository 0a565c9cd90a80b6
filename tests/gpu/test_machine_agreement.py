"""The PTX machine against the GPU: the same text, the same inputs, equal to rounding."""

import numpy as np
import pytest

pytestmark = pytest.mark.gpu

torch = pytest.importorskip("torch")
if not torch.cuda.is_available():
    pytest.skip("needs an NVIDIA GPU", allow_module_level=True)

import reference  # noqa: E402
from cases import CASES, bases, to_torch, views  # noqa: E402

# Share of elements that may differ at all. The fp32 sums of the two sides differ by about 2**-22 of
# their magnitude, which crosses a rounding boundary eight times as often for f16 as for bf16.
MAX_SHARE = {"bfloat16": 0.01, "float16": 0.02}
FLIPS = 3  # probabilities of one row that may round to the other neighbour


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
        assert share <= MAX_SHARE[ours.dtype.name], f"{share:.3%} of the elements differ"
        # Where terms cancel, the error of either side exceeds a unit of what is left.
        gap = np.abs(ours.astype(np.float64) - theirs.astype(np.float64))
        assert ((units <= 1) | (gap <= slack(case, machine))).all(), f"by {worst} units"
        if case.integers:
            assert worst == 0, "whole numbers have exact sums"


def slack(case, args):
    """What an element may differ by although it is not its own rounding.

    A product: the fp32 error of both sums. Attention: besides, `ex2.approx` is exact on the
    machine and off by up to 2 ulp on the GPU, so that a probability now and then rounds to its
    other 16-bit neighbour before it meets V.
    """
    if case.kernel == "matmul":
        left, right = (np.abs(reference.as_float64(x)) for x in args[:2])
        return 2 * reference.accumulation(256) * (left @ right)
    query, key, value = (reference.as_float64(x) for x in args[:3])
    groups = query.shape[1] // key.shape[1]
    key, value = (np.repeat(x, groups, axis=1) for x in (key, value))
    scores = query @ key.swapaxes(-1, -2) * args[-1]
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    weights /= weights.sum(-1, keepdims=True)
    largest = np.stack(
        [(weights[..., row, :, None] * np.abs(value)).max(-2) for row in range(query.shape[2])], -2
    )
    unit = 2.0**-7 if args[0].dtype.name == "bfloat16" else 2.0**-10
    return FLIPS * unit * largest + 2 * reference.accumulation(256) * (weights @ np.abs(value))
