"""A module's parameters on the PTX machine: against a stand-in, and on the machine itself."""

from types import SimpleNamespace

import ml_dtypes
import numpy as np
import pytest

import tilecat.sim
from runtime.ptx_texts import copy_tile, scale
from tilecat.errors import ResourceError
from tilecat.runtime import arrays, machine

on_machine = pytest.mark.skipif(
    not hasattr(tilecat.sim, "run"), reason="the PTX machine is not complete"
)


class Recorder(SimpleNamespace):
    """Stands in for tilecat.sim: keeps what it was given."""

    def TensorMap(self, *fields):  # noqa: N802
        return ("map", *fields)

    def Pointer(self, array):  # noqa: N802
        return ("pointer", array)

    def run(self, program, **options):
        self.program, self.options = program, options
        return "result"


@pytest.fixture
def sim(monkeypatch):
    recorder = Recorder()
    monkeypatch.setattr(machine, "sim", recorder)
    return recorder


def test_launch_hands_over_pointers_extents_strides_and_scalars(sim):
    x = np.zeros(64, np.float32)[::2]
    module = scale()
    assert machine.launch(module, [arrays.view(x), 3], seed=5, races=False) == "result"
    (kind, array), length, stride, factor = sim.options["args"]
    assert kind == "pointer" and array is x
    assert (length, stride, factor) == (32, 2, 3.0)
    assert isinstance(factor, float)
    assert sim.program == module.text
    assert sim.options["grid"] == machine.DEFAULT_CTAS
    assert (sim.options["seed"], sim.options["races"]) == (5, False)
    assert sim.options["table"] is module.table


def test_launch_rounds_the_grid_up_to_whole_clusters(sim):
    machine.launch(scale(cluster=3), [arrays.view(np.zeros(4, np.float32)), 1.0])
    assert sim.options["grid"] == 6
    machine.launch(scale(), [arrays.view(np.zeros(4, np.float32)), 1.0], grid=9)
    assert sim.options["grid"] == 9


def test_launch_orders_tensor_map_axes_as_numpy_does(sim):
    src, dst = np.zeros((64, 64), np.float16), np.zeros((64, 64), np.float16)
    src[3, 5] = 1
    machine.launch(copy_tile(), [arrays.view(src), arrays.view(dst)])
    (kind, array, box, swizzle, dtype), _ = sim.options["args"]
    assert (kind, box, swizzle, dtype) == ("map", (64, 64), 128, "f16")
    assert array[3, 5] == 1


def test_innermost_last_permutes_and_drops_axes():
    x = np.arange(24).reshape(2, 3, 4)
    assert machine.innermost_last(x, (2, 1, 0)).strides == x.strides
    moved = machine.innermost_last(x, (0, 2, 1))  # innermost axis 0, then 2, then 1
    np.testing.assert_array_equal(moved, x.transpose(1, 2, 0))
    assert moved.base is not None
    np.testing.assert_array_equal(machine.innermost_last(x, (1, 2)), x[0].T)


def test_launch_refuses_arrays_on_the_gpu(sim):
    x = arrays.ArrayView("cuda:0", 256, (4,), (1,), "f32", False, None)
    with pytest.raises(ResourceError, match="must be in CPU memory, got argument 0 on cuda:0"):
        machine.launch(scale(), [x, 1.0])


@on_machine
@pytest.mark.parametrize("step", [1, 3])
def test_machine_runs_a_strided_kernel_in_place(step):
    x = np.arange(1000, dtype=np.float32)
    expected = x.copy()
    expected[1::step] *= 2.5
    result = machine.launch(scale(), [arrays.view(x[1::step]), 2.5])
    assert not result.reports
    np.testing.assert_array_equal(x, expected)


@on_machine
@pytest.mark.parametrize(("rows", "cols"), [(64, 64), (50, 40), (1, 64)])
@pytest.mark.parametrize(("swizzle_bytes", "box_cols"), [(128, 64), (64, 32), (0, 64)])
def test_machine_copies_a_tile_through_tensor_maps(rows, cols, swizzle_bytes, box_cols):
    rng = np.random.default_rng(0)
    src = rng.standard_normal((rows, 72)).astype(ml_dtypes.bfloat16)[:, :cols]
    dst = np.full((rows + 1, 72), -1, ml_dtypes.bfloat16)
    module = copy_tile(cols=box_cols, swizzle_bytes=swizzle_bytes)
    result = machine.launch(module, [arrays.view(src), arrays.view(dst[:rows, :cols])], grid=1)
    assert not result.reports
    width = min(cols, box_cols)
    np.testing.assert_array_equal(dst[:rows, :width], src[:, :width])
    assert (dst[rows:] == -1).all() and (dst[:, width:] == -1).all()
