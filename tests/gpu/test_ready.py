"""Products found again on a GPU: the launch made ready gives the first call's bits, anywhere."""

import subprocess
import sys

import pytest

pytestmark = pytest.mark.gpu

torch = pytest.importorskip("torch")
if not torch.cuda.is_available():
    pytest.skip("needs an NVIDIA GPU", allow_module_level=True)

import tilecat as tc  # noqa: E402
from tilecat import ready  # noqa: E402
from tilecat.testing import host_time  # noqa: E402


def cold():
    ready.forget()


def operands(m, n, k, dtype=torch.bfloat16, seed=0):
    torch.manual_seed(seed)
    return (torch.randn(m, k, device="cuda").to(dtype), torch.randn(k, n, device="cuda").to(dtype))


def poisoned(m, n, dtype=torch.bfloat16, skip=0):
    whole = torch.full((m * n + 64,), float("nan"), device="cuda", dtype=dtype)
    return whole[skip : skip + m * n].view(m, n)


OPTIONS = {
    "plain": {}, "alpha": {"alpha": 2.0}, "gelu": {"epilogue": tc.epilogues.gelu},
    "scale": {"scale_a": 0.5},
}  # fmt: skip


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
@pytest.mark.parametrize("shape", [(256, 320, 192), (5, 320, 192), (300, 257, 129)], ids=str)
@pytest.mark.parametrize("turned", [False, True])
def test_operands_of_one_layout_anywhere(shape, options, turned):
    m, n, k = shape
    cold()
    given = []
    for seed in range(8):
        a, b = operands(m, n, k, seed=seed)
        b = b.t().contiguous().t() if turned else b
        given.append((a, b, poisoned(m, n, skip=8 * (seed % 3) + (seed == 5))))
    warm = [tc.matmul(*args, **options).clone() for args in given]
    again = [tc.matmul(*args, **options).clone() for args in given]
    fresh = [tc.matmul(a, b, **options) for a, b, _ in given]
    for args, first, second, third in zip(given, warm, again, fresh, strict=True):
        cold()
        wanted = tc.matmul(*args, **options)
        assert not wanted.isnan().any()
        for found in (first, second, third):
            torch.testing.assert_close(found, wanted, rtol=0, atol=0)


def test_parameters_streams_and_graphs():
    cold()
    a, b = operands(256, 512, 256)
    weight = torch.nn.Parameter(b, requires_grad=False)
    bias = torch.randn(512, device="cuda")
    steps = ((tc.epilogues.bias, bias), tc.epilogues.gelu)
    wanted = tc.matmul(a, b, epilogue=steps)
    stream = torch.cuda.Stream()
    for _ in range(3):
        torch.testing.assert_close(tc.matmul(a, weight, epilogue=steps), wanted, rtol=0, atol=0)
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            torch.cuda._sleep(10_000_000)
            late = a * 1.0
            out = tc.matmul(late, weight, epilogue=steps)
        stream.synchronize()
        torch.testing.assert_close(out, wanted, rtol=0, atol=0)
    graph, out = torch.cuda.CUDAGraph(), torch.empty_like(wanted)
    with torch.cuda.graph(graph):
        tc.matmul(a, weight, out, epilogue=steps)
    out.fill_(float("nan"))
    graph.replay()
    torch.testing.assert_close(out, wanted, rtol=0, atol=0)


def test_host_time_is_that_of_a_look_up_and_the_launch():
    """Loose limits, in microseconds: `tilecat bench host` measures."""
    a, b = operands(128, 128, 128)
    out, bias = torch.empty_like(a), torch.randn(128, device="cuda")
    for options in ({}, {"epilogue": ((tc.epilogues.bias, bias),)}):
        for _ in range(3):
            tc.matmul(a, b, out, **options)
        assert host_time(lambda options=options: tc.matmul(a, b, out, **options)) < 30


CALLS = """
import sys, torch, tilecat as tc
from tilecat import gemm_choice, gemm_winners
a = torch.randn(640, 264, device="cuda").bfloat16()
b = torch.randn(264, 2560, device="cuda").bfloat16()
c = tc.matmul(a, b)
assert ((c.double() - a.double() @ b.double()).norm() < 2**-8 * c.double().norm())
sms = torch.cuda.get_device_properties(0).multi_processor_count
print([w.params for w in gemm_winners.measured(sms) if (w.m, w.n, w.depth) == (640, 2560, 264)])
"""


def test_autotune_tunes_once_and_later_processes_use_it(monkeypatch, tmp_path):
    monkeypatch.setenv("TILECAT_CACHE_DIR", str(tmp_path))
    found = []
    for value in ("0", "20", "20"):
        monkeypatch.setenv("TILECAT_AUTOTUNE", value)
        done = subprocess.run(
            [sys.executable, "-W", "error::RuntimeWarning", "-c", CALLS],
            capture_output=True, text=True, timeout=180,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        found.append(done.stdout)
    assert found[0].strip() == "[]" and "tile_m" in found[1] and found[1] == found[2]
