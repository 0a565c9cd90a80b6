"""Calls of `tc.matmul` and kernels with GPU tensors: the launch made ready is the slow path's."""

import ctypes
import itertools
import math
import sys
from types import SimpleNamespace

import pytest
from runtime.fake_cuda import forget, installed

import tilecat as tc
from tilecat import driver, operators, ready
from tilecat.codegen.module import PointerParam, ScalarParam, StrideParam, TensorMapParam
from tilecat.kernels.gemm import matmul as kernel
from tilecat.runtime import arrays, launch, workspace

FP8 = ("float8_e4m3fn", "float8_e5m2")
DTYPES = {name: name for name in ("bfloat16", "float16", "float32", "int32", *FP8)}
FRESH = itertools.count(1 << 30, 1 << 26)


class Tensor:
    """As much of a torch tensor on a GPU as a launch looks at."""

    def __init__(self, shape, dtype="bfloat16", stride=None, ptr=None, device=0):
        self.shape, self.dtype, self._device = tuple(shape), dtype, device
        self._stride = tuple(stride or (math.prod(shape[i + 1 :]) for i in range(len(shape))))
        self._ptr = next(FRESH) if ptr is None else ptr
        self.is_cuda, self.device = device >= 0, f"cuda:{device}"

    def data_ptr(self):
        return self._ptr

    def stride(self):
        return self._stride

    def get_device(self):
        return self._device

    def is_neg(self):
        return False

    def like(self, **changes):
        """A tensor in the same place, in part something else."""
        mine = {"shape": self.shape, "dtype": self.dtype, "stride": self._stride}
        return type(self)(**{**mine, "ptr": self._ptr, "device": self._device, **changes})

    def swapaxes(self, *axes):
        return self.like(shape=self.shape[::-1], stride=self._stride[::-1])

    def reshape(self, *shape):
        rest = math.prod(self.shape) // max(math.prod(n for n in shape if n != -1), 1)
        shape = tuple(rest if n == -1 else n for n in shape)
        return self if shape == self.shape else self.like(shape=shape, stride=None)

    def __getitem__(self, first):
        return self.like(shape=(first.stop,))

    def __setitem__(self, index, value):
        assert (index, value) == (slice(None), 0)

    def contiguous(self):
        return self.like(stride=(*self.shape[1:], 1), ptr=next(FRESH))


class Parameter(Tensor):
    """torch.nn.Parameter."""


def copy_of(launched):
    """A launch and the bytes of its parameters, which the driver copies."""
    (function, *numbers, place, extra), context = launched
    params = MODULES[function].params
    sizes = {TensorMapParam: 128, PointerParam: 8, StrideParam: 8}
    places = (ctypes.c_void_p * len(params)).from_address(place)
    values = []
    for param, at in zip(params, places, strict=True):
        scalar = isinstance(param, ScalarParam)
        assert not scalar or param.dtype in ("f32", "s32", "u32")
        values.append(ctypes.string_at(at, sizes.get(type(param), 4)))
    return function, *numbers, tuple(values), context


MODULES = {}


@pytest.fixture
def gpu(monkeypatch):
    """What was launched, and how often a kernel was made ready."""
    cuda, found = installed(monkeypatch), SimpleNamespace(ran=[], learnt=0, stream=0)
    found.cuda = cuda
    for memory in ("_memories", "_unread"):
        monkeypatch.setattr(workspace, memory, {})
    current = SimpleNamespace(_cuda_getCurrentRawStream=lambda index: found.stream + index)
    torch = SimpleNamespace(
        Tensor=Tensor, nn=SimpleNamespace(Parameter=Parameter), _C=current, **DTYPES,
        empty_strided=lambda shape, stride, dtype, device: Tensor(
            shape, dtype, stride, device=int(device[-1])),
    )  # fmt: skip
    monkeypatch.setitem(sys.modules, "torch", torch)
    monkeypatch.setitem(sys.modules, "torch.nn", torch.nn)
    monkeypatch.setattr(Tensor, "__module__", "torch")
    monkeypatch.setattr(Parameter, "__module__", "torch")
    cold(monkeypatch)
    monkeypatch.setattr(operators, "num_sms", lambda device: 132)
    monkeypatch.setattr(driver.Compiled, "cubin", property(lambda self: self.module))
    launched, learn = cuda.cuLaunchKernel, ready._Known.learn

    def load(module):
        MODULES[id(module)] = module
        return cuda.status, id(module)

    def run(*args):
        found.ran.append(copy_of((args, cuda.context)))
        return launched(*args)

    def learning(self, *args):
        found.learnt += 1
        learn(self, *args)

    def run_configured(config, function, place, extra):
        grid, block = ((getattr(config, f"{what}Dim{axis}") for axis in "XYZ")
                       for what in ("grid", "block"))  # fmt: skip
        numbers = *grid, *block, config.sharedMemBytes, config.hStream
        found.ran.append(copy_of(((function, *numbers, place, extra), cuda.context)))
        return configured(config, function, place, extra)

    configured = cuda.cuLaunchKernelEx
    cuda.cuModuleLoadData, cuda.cuLaunchKernel = load, run
    cuda.cuLaunchKernelEx = run_configured
    cuda.cuModuleGetFunction = lambda module, name: (cuda.status, module)
    monkeypatch.setattr(ready._Known, "learn", learning)
    found.cold = lambda: cold(monkeypatch)
    yield found
    forget()


def cold(monkeypatch):
    """Forgets every call; what is compiled stays."""
    monkeypatch.setattr(arrays, "_viewers", {})
    monkeypatch.setattr(arrays, "_torch_table", {})
    monkeypatch.setattr(launch, "_stream_getters", {})
    arrays.TENSORS.clear()
    ready.forget()
    for memory in (kernel._ready, kernel._prepared):
        memory.clear()
    for compiled in kernel._compiled.values():
        compiled._launcher = None


def changed(a, b, c):
    """Operands that differ from (a, b, c) in one thing each."""
    wide = (300, 1)
    m, k, n = *a.shape, b.shape[1]
    yield "the same", (a, b, c)
    yield "elsewhere", (a, b.like(ptr=1 << 20), c)
    yield "output elsewhere", (a, b, c.like(ptr=1 << 21))
    yield "rows", (a.like(shape=(m - 8, k)), b, c.like(shape=(m - 8, n)))
    yield "columns", (a, b.like(shape=(k, n - 8)), c.like(shape=(m, n - 8), stride=(n, 1)))
    yield "k", (a.like(shape=(m, k - 8)), b.like(shape=(k - 8, n)), c)
    yield "strides of a", (a.like(stride=(304, 1)), b, c)
    yield "strides of b", (a, b.like(stride=(1, k)), c)
    yield "strides of out", (a, b, c.like(stride=(304, 1)))
    yield "strides that TMA cannot take", (a.like(stride=(k + 1, 1)), b, c)
    yield "an address that TMA cannot take", (a, b, c.like(ptr=c.data_ptr() + 2))
    yield "dtype", tuple(x.like(dtype="float16") for x in (a, b, c))
    yield "dtype of out", (a, b, c.like(dtype="float32"))
    yield "device", tuple(x.like(device=1) for x in (a, b, c))
    yield "one row", (a.like(shape=(1, k)), b, c.like(shape=(1, n)))
    yield "parameter", (a, Parameter(b.shape, ptr=b.data_ptr(), stride=b.stride()), c)
    yield "wide", (a.like(shape=(1, k), stride=wide), b, c.like(shape=(1, n), stride=wide))


def test_a_ready_launch_is_that_of_the_slow_path_whatever_changes(gpu):
    a, b, c = Tensor((128, 64)), Tensor((64, 256)), Tensor((128, 256))
    warm, slow = {}, {}
    for _ in range(3):
        for name, args in changed(a, b, c):
            for _ in range(2):  # the second is found by its addresses alone, as the third round is
                tc.matmul(*args)
                warm.setdefault(name, []).append(gpu.ran[-1])
    assert (once := gpu.learnt) == len(warm) - 3, "three differ by address or class alone"
    for name, args in changed(a, b, c):
        tc.matmul(*args)
        assert warm[name] == [gpu.ran[-1]] * 6, name
    assert gpu.learnt == once, "all of them are known"
    for name, args in changed(a, b, c):
        gpu.cold()
        tc.matmul(*args)
        slow[name] = gpu.ran[-1]
        assert warm[name][0] == slow[name], name
    different = set(slow) - {"parameter", "wide"}
    assert len({slow[name] for name in different}) == len(different)


def outcome(gpu, args):
    """The launch of a call, or its error."""
    try:
        tc.matmul(*args)
    except tc.TileError as error:
        return str(error)
    return gpu.ran[-1]


@pytest.mark.parametrize("which", range(3), ids=["a", "b", "out"])
def test_one_tensor_that_lies_otherwise_is_seen_where_the_addresses_are_known(gpu, which):
    given = Tensor((64, 128)), Tensor((128, 256)), Tensor((64, 256))
    m, n = given[which].shape
    changes = [{"shape": (m - 8, n)}, {"shape": (m, n - 8)}, {"shape": (1, m, n)},
               {"stride": (n + 8, 1)}, {"stride": (1, m)}, {"dtype": "float16"},
               {"dtype": "int32"}, {"device": 1}]  # fmt: skip
    for change in changes:
        other = list(given)
        other[which] = given[which].like(**change)
        gpu.cold()
        wanted = outcome(gpu, other)
        for _ in range(4):
            tc.matmul(*given)
        launched = gpu.ran[-1]
        assert len(ready._three) == 1
        assert outcome(gpu, other) == wanted != launched, change
        assert outcome(gpu, given) == launched, change


def test_a_ready_launch_takes_the_current_stream_and_context(gpu):
    a, b, c = (Tensor((64, 64), device=1) for _ in range(3))
    for stream in (0, 0, 0, 70, 70, 500):
        gpu.stream = stream
        tc.matmul(a, b, c)
        *_, handle, _, context = gpu.ran[-1]
        assert (handle, context) == (stream + 1, 1001)


@pytest.mark.parametrize("shape", [(512, 512, 16384), (512, 3, 16384), (9 * 128, 5 * 256, 8192)])
def test_partial_sums_are_the_streams_and_the_graphs_own(gpu, shape):
    n, m, k = shape
    a, b, c = Tensor((m, k)), Tensor((k, n)), Tensor((m, n))
    warm, places = {}, [(0, 0), (70, 0), (70, 1), (0, 0), (70, 2), (70, 0), (70, 2)]
    for gpu.stream, gpu.cuda.capture in places:
        tc.matmul(a, b, c)
        warm.setdefault((gpu.stream, gpu.cuda.capture), set()).add(gpu.ran[-1])
    assert all(len(runs) == 1 for runs in warm.values()) and gpu.learnt == 1
    assert len({params for runs in warm.values() for *_, params, _ in runs}) == 4
    assert gpu.ran[0][-2] != gpu.ran[1][-2], "their parameters differ"
    for gpu.stream, gpu.cuda.capture in ((0, 0), (70, 0)):
        gpu.cold()
        tc.matmul(a, b, c)
        assert {gpu.ran[-1]} == warm[gpu.stream, gpu.cuda.capture]


def test_numbers_and_dtypes_of_the_output_are_part_of_what_is_known(gpu):
    a, b, c = Tensor((64, 64)), Tensor((64, 64)), Tensor((64, 64))
    calls = [{}, {"beta": 1}, {"beta": 1.0}, {"alpha": 2.0}, {"alpha": 3.0}, {"alpha": 0.0},
             {"alpha": -0.0}, {"out_dtype": "bf16"}, {"out_dtype": tc.bf16}]  # fmt: skip
    warm = []
    for _ in range(3):
        warm.append([])
        for options in calls:
            tc.matmul(a, b, c, **options)
            warm[-1].append(gpu.ran[-1])
    assert warm[0] == warm[1] == warm[2]
    plain, add, same, twice, thrice, zero, minus, *others = warm[0]
    assert len({plain, add, twice, thrice, zero, minus}) == 6 and add == same
    assert others == [plain, plain]
    with pytest.raises(tc.DTypeError, match="alpha is a number"):
        tc.matmul(a, b, c, alpha=True)
    with pytest.raises(tc.DTypeError, match="output of bf16"):
        tc.matmul(a, b, c, out_dtype="f32")


def test_each_operand_has_its_own_dtype(gpu):
    a, b = Tensor((64, 64), FP8[0]), Tensor((64, 64), FP8[0], stride=(1, 64))
    c, warm = Tensor((64, 64)), []
    kinds = [(x, y) for x in FP8 for y in FP8]
    for _ in range(3):
        for x, y in kinds:
            tc.matmul(a.like(dtype=x), b.like(dtype=y), c)
            warm.append(gpu.ran[-1])
    assert warm[:4] == warm[4:8] == warm[8:] and len(set(warm)) == 4 == gpu.learnt


def test_an_output_that_nobody_gave_is_new_each_time(gpu):
    a, b = Tensor((64, 64)), Tensor((64, 128))
    made = [tc.matmul(a, b) for _ in range(4)]
    wide = [tc.matmul(a, b, out_dtype="f32") for _ in range(4)]
    assert {(x.shape, x.dtype) for x in made} == {((64, 128), "bfloat16")}
    assert {(x.shape, x.dtype) for x in wide} == {((64, 128), "float32")}
    assert len({x.data_ptr() for x in made + wide}) == 8
    assert len({run[-2] for run in gpu.ran}) == 8 and gpu.learnt == 2
    assert [tc.matmul(a.like(shape=(m, 64)), b).shape[0] for m in (32, 1, 32)] == [32, 1, 32]
    gpu.cold()
    tc.matmul(a, b, made[1])
    assert gpu.ran[-1] == gpu.ran[1]
    with pytest.raises(tc.LayoutError, match="beta scales what out holds"):
        tc.matmul(a, b, beta=1.0)


def test_an_output_that_overlaps_is_refused_where_the_layout_is_known(gpu):
    a, b, c = Tensor((64, 64)), Tensor((64, 64)), Tensor((64, 64))
    for _ in range(3):
        tc.matmul(a, b, c)
    for other in (a, a.like(ptr=a.data_ptr() + 64 * 64), b.like(ptr=b.data_ptr() - 64 * 64)):
        with pytest.raises(tc.LayoutError, match="must share no memory"):
            tc.matmul(a, b, other)
    for args in ((a.like(device=1), b, c), (a, b.like(device=1), c), (a, b, c.like(device=1))):
        with pytest.raises(tc.ResourceError, match="on one device"):
            tc.matmul(*args)


def test_a_copied_operand_is_copied_anew_at_each_call(gpu):
    a, b, c = (Tensor((64, 64), "float32") for _ in range(3))
    for _ in range(3):
        tc.matmul(a, b, c)
    for _ in range(3):
        tc.matmul(a, b.like(stride=(1, 64)), c, second=b, epilogue=tc.epilogues.swiglu)
    assert gpu.learnt == 0 and len({run[-2] for run in gpu.ran}) == 6


def scaled(x, at, s):
    """A step."""
    return x * s


def test_steps_scales_and_their_tensors_are_part_of_what_is_known(gpu):
    a, b, c = Tensor((64, 64)), Tensor((64, 64)), Tensor((64, 64))
    bias, scale, other = (Tensor((64,), "float32") for _ in range(3))
    t = tc.epilogues
    calls = [
        {"epilogue": t.gelu}, {"epilogue": (t.gelu, t.relu)}, {"epilogue": (t.relu, t.gelu)},
        {"epilogue": ((t.bias, bias),)}, {"epilogue": ((t.bias, other),)},
        {"epilogue": ((t.bias, bias.like(dtype="bfloat16")),)}, {"scale_a": scale},
        {"scale_b": scale}, {"scale_a": 2.0}, {"scale_a": 3.0}, {"scale_a": scale, "alpha": 2.0},
        {"second": b.like(ptr=1 << 22), "epilogue": t.swiglu},
        {"second": b.like(ptr=1 << 23), "epilogue": t.swiglu},
        {"epilogue": (lambda x, at: x * 2.0)}, {"epilogue": ((scaled, 0.0),)},
        {"epilogue": ((scaled, -0.0),)},
    ]  # fmt: skip
    warm = []
    for _ in range(4):
        for options in calls:
            tc.matmul(a, b, c, **options)
            warm.append(gpu.ran[-1])
    count = len(calls)
    assert gpu.learnt == count
    assert [warm[at : at + count] for at in range(0, len(warm), count)] == [warm[:count]] * 4
    assert len(set(warm)) == count
    for options, wanted in zip(calls, warm, strict=False):
        gpu.cold()
        tc.matmul(a, b, c, **options)
        assert gpu.ran[-1] == wanted
    moved = c.like(ptr=1 << 24)
    for _ in range(3):
        tc.matmul(a, b, moved, **calls[3])
    gpu.cold()
    tc.matmul(a, b, moved, **calls[3])
    assert len(set(gpu.ran[-4:])) == 1


def test_a_seed_of_each_call_is_not_remembered(gpu):
    a, b, c = Tensor((64, 64)), Tensor((64, 64)), Tensor((64, 64))
    for seed in range(1, 9):
        tc.matmul(a, b, c, epilogue=((tc.epilogues.Dropout(0.5), seed),))
    assert gpu.learnt == 0 and len(set(gpu.ran)) == 8


def test_a_kernel_called_again_launches_the_same(gpu):
    a, b, c = Tensor((128, 64)), Tensor((64, 256)), Tensor((128, 256))
    params = {"tile_m": 64, "tile_n": 128, "stages": 3}
    warm, slow = {}, {}
    for _ in range(3):
        for name, args in changed(a, b, c):
            kernel(*args, **params)
            warm.setdefault(name, []).append(gpu.ran[-1])
    for name, args in changed(a, b, c):
        gpu.cold()
        kernel(*args, **params)
        slow[name] = gpu.ran[-1]
        assert warm[name] == [slow[name]] * 3, name
    kernel(a, b, c, **params)
    kernel(a, b, c, **{**params, "stages": 4})
    assert gpu.ran[-1] != gpu.ran[-2]
    with pytest.raises(tc.TileError, match="stages"):
        kernel(a, b, c, **{**params, "stages": True})


def test_what_is_remembered_is_bounded(gpu, monkeypatch):
    monkeypatch.setattr(ready, "MAX_CALLS", 3)
    a, b = Tensor((64, 64)), Tensor((64, 64))
    for rows in range(56, 64):
        tc.matmul(a.like(shape=(rows, 64)), b)
    for _ in range(8):
        tc.matmul(a, b)
    for rows in range(56, 64):
        for _ in range(3):
            tc.matmul(a.like(shape=(rows, 64)), b, Tensor((rows, 64)))
    assert 0 < len(ready._calls) <= 3 and len(ready._seen) <= 3 and len(ready._three) <= 3
    assert all(len(known.launches) <= 3 for known in ready._calls.values())
