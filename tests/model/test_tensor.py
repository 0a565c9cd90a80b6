"""The replay with sums in tensor memory: what must hold of any rates, and by hand."""

from __future__ import annotations

import json
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest

from tilecat.arch import arch_of
from tilecat.arch.spec import ANNOUNCED, ASSUMED, DOCUMENTED, MEASURED
from tilecat.errors import ArchError, LayoutError, ResourceError
from tilecat.model.events import Span
from tilecat.model.l2 import Wave
from tilecat.model.loads import TMA, Supply
from tilecat.model.rates import B200, CALIBRATED, GPUS, H200, VR200, Rates, rates_of
from tilecat.model.replay import TENSOR_CORES, write_trace
from tilecat.model.tensor import EPILOGUE, Shape, TensorCta, predict_tensor, product_cycles

ORDERLY = replace(B200, mma_latency_cycles=1e-9, task_cycles=1e-9, cta_cycles=1e-9)
WAVE = Wave(steps=1)  # nothing waits for the memory
NVFP4 = {"kind": "mxf4nvf4", "pair": True, "buffers": 1}
RUBIN = {**NVFP4, "wide": True, "tiles": 2}


def cta_of(shape: Shape, steps: int, tasks: int, cycles_byte: float, rates: Rates) -> TensorCta:
    """Whose loads take so many cycles a byte."""
    rates = replace(rates, port_bytes_cycle=1 / cycles_byte, load_bytes_second=1e18)
    step = shape.tiles * shape.a_bytes + shape.b_bytes
    return TensorCta(shape, steps, tasks, Supply((WAVE,) * tasks, 1, step, rates.clock_hz), rates)


def cycles(shape: Shape, steps: int, tasks: int, cycles_byte: float, **rates: float) -> float:
    return cta_of(shape, steps, tasks, cycles_byte, replace(ORDERLY, **rates)).run()


def test_an_instruction_takes_half_its_columns_in_cycles_whatever_the_type():
    for kind in ("f16", "tf32", "f8f6f4", "mxf4nvf4"):
        assert product_cycles(Shape(kind, cols=256), B200) == 128
    assert product_cycles(Shape("f16", cols=64), B200) == (128 + 64) * 32 / 128  # its operands


def test_a_wide_step_of_one_cta_waits_for_its_operands_and_a_pair_does_not():
    wide = replace(VR200, mma_flops_cycle=8192)
    assert product_cycles(Shape("f8f6f4", wide=True), wide) == (128 + 256) * 64 / 128
    assert product_cycles(Shape("f8f6f4", wide=True, pair=True), wide) == 128
    two = Shape("f8f6f4", wide=True, pair=True, tiles=2, buffers=1, collector_b=True)
    assert product_cycles(two, replace(wide, shared_bytes_cycle=64), reads_b=False) == 128


def test_bytes_of_a_step_are_those_of_the_tiles():
    plain = Shape("f16", pair=True)
    assert (plain.tile_m, plain.tile_k) == (256, 64)
    assert (plain.a_bytes, plain.b_bytes) == (128 * 128, 128 * 128)
    shared = Shape(**RUBIN)
    assert (shared.tile_m, shared.tile_k) == (512, 256)
    # 16 scales of a byte a row; each CTA of a pair has half of B and all of B's scales.
    assert (shared.a_bytes, shared.b_bytes) == (128 * (128 + 16), 128 * 128 + 256 * 16)
    assert shared.columns == 2 * 256 + 2 * 16 + 32 == 576


def test_products_bound_where_loads_are_fast():
    shape = Shape("f16", stages=4)
    found = cycles(shape, 100, 1, 1e-6, load_latency_cycles=1e-9)
    tail = 128 * 256 * 4 / 512 + 128 * 256 * 2 / ORDERLY.store_bytes_cycle
    assert found == pytest.approx(100 * 4 * 128 + tail, rel=1e-3)


def test_loads_bound_where_they_are_slow_and_a_shared_b_halves_its_share():
    for tiles, each in ((1, 2 * 128 * 128), (2, 3 * 128 * 128)):
        shape = Shape("f8f6f4", pair=True, tiles=tiles, wide=True, stages=4, buffers=1)
        found = cycles(shape, 200, 1, 1 / 16, load_latency_cycles=1e-9)
        assert found == pytest.approx(200 * each / 16, rel=0.05)


def test_a_second_buffer_hides_the_epilogue():
    one, two = (
        cycles(Shape("f16", buffers=b, stages=6), 40, 8, 1e-6, tensor_read_bytes_cycle=32.0)
        for b in (1, 2)
    )
    read = 128 * 256 * 4 / 32
    assert one - two > 6 * read * 0.9


@pytest.mark.parametrize("kind", ["f16", "f8f6f4", "mxf4nvf4"])
@pytest.mark.parametrize("tiles", [1, 2])
@pytest.mark.parametrize("cycles_byte", [1 / 64, 1 / 8])
def test_a_deeper_ring_is_not_slower(kind: str, tiles: int, cycles_byte: float):
    shapes = [Shape(kind, tiles=tiles, pair=True, stages=s, buffers=1) for s in range(1, 8)]
    times = [cta_of(s, 12, 3, cycles_byte, B200).run() for s in shapes]
    assert all(deep <= flat + 1e-6 for flat, deep in zip(times, times[1:], strict=False))
    assert times[-1] < times[0]


def test_early_release_and_a_ring_of_a_do_not_slow():
    base = Shape(**RUBIN, stages=3)
    rings = replace(base, a_stages=3)
    early = replace(rings, early_a=True)
    plain, own, soon = (cta_of(s, 30, 2, 1 / 64, VR200).run() for s in (base, rings, early))
    assert soon <= own + 1e-6 <= plain + 2e-6
    slow = replace(VR200, load_latency_cycles=6000)  # where latency bounds, it is earlier
    own, soon = (cta_of(s, 30, 2, 1 / 64, slow).run() for s in (rings, early))
    assert soon < own


def test_work_is_conserved_and_a_stage_is_filled_when_read():
    shape = Shape(**RUBIN, stages=3)
    cta = cta_of(shape, 7, 3, 1 / 64, VR200)
    cta.run()
    spans = cta.events.spans
    loads = [s for s in spans if s.unit == TMA]
    assert len(loads) == 3 * 7 * 3  # two tiles of A and one of B
    products: dict[str, list[Span]] = {}
    for span in spans:
        if span.unit == TENSOR_CORES and span.name.startswith("mma"):
            products.setdefault(span.name.split()[1], []).append(span)
    assert len(products) == 21 and all(len(some) == 2 * 2 for some in products.values())
    order = sorted(products, key=lambda name: tuple(map(int, name.split("."))))
    of_b = [s for s in loads if s.name.startswith("load B")]
    for load, name in zip(of_b, order, strict=True):
        assert min(p.start for p in products[name]) >= load.end + VR200.load_latency_cycles - 1e-6
    for load, name in zip(of_b[3:], order, strict=False):
        assert load.start >= max(p.end for p in products[name]) - 1e-6


def test_what_a_chip_lacks_is_refused():
    rubin, blackwell = arch_of("sm_107a"), arch_of("sm_100a")
    shape = Shape(**RUBIN, stages=3)
    shape.check(rubin, exclusive=True)
    with pytest.raises(ArchError, match="model: needs wide_k, which sm_100a does not have"):
        shape.check(blackwell)
    with pytest.raises(ResourceError, match="has 512 columns of tensor memory, got 576"):
        shape.check(rubin)
    with pytest.raises(ResourceError, match="has 232448 bytes of shared memory, got"):
        replace(shape, stages=5).check(rubin, exclusive=True)
    replace(shape, stages=5).check(rubin, oversized=True, exclusive=True)
    with pytest.raises(LayoutError, match="early release of A needs a ring of A's own"):
        Shape(**RUBIN, early_a=True)
    with pytest.raises(LayoutError, match="kind is one of tf32, .*, got kind='f64'"):
        Shape("f64")
    with pytest.raises(ArchError, match=r"rates are known of H200 \(sm_90a\), .*'sm_103a'"):
        rates_of("sm_103a")


@pytest.mark.parametrize("target", GPUS)
def test_every_rate_has_a_source_and_a_word_on_how_it_is_known(target: str):
    _, rates = rates_of(target)
    names = [field.name for field in fields(rates) if field.name != "sources"]
    assert [source.name for source in rates.sources] == names
    kinds = {ANNOUNCED, ASSUMED, DOCUMENTED, MEASURED, CALIBRATED}
    assert all(s.known in kinds and len(s.text) > 8 for s in rates.sources)
    if rates is not H200:
        assert not any(s.known == CALIBRATED for s in rates.sources)


@pytest.mark.parametrize(
    ("target", "kind", "wide"),
    [("sm_100a", "f16", False), ("sm_100a", "mxf4nvf4", False), ("sm_107a", "mxf4nvf4", True),
     ("sm_107a", "f8f6f4", True)],
)  # fmt: skip
def test_products_alone_reach_the_announced_rate(target: str, kind: str, wide: bool):
    _, rates = rates_of(target)
    shape = Shape(kind, pair=True, wide=wide)
    elems = 2 * 128 * 256 * shape.instruction_bytes * shape.tile_k / shape.k_bytes
    whole = elems / product_cycles(shape, rates) * rates.sms * rates.clock_hz / 1e12
    assert whole == pytest.approx(arch_of(target).rate(kind).value, rel=0.01)


def test_the_trace_has_a_row_of_each_role(tmp_path: Path):
    found: Any = predict_tensor(4096, 4096, 4096, Shape("f16", pair=True), B200)
    write_trace(found, tmp_path / "trace.json")
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    rows = {e["args"]["name"] for e in events if e["ph"] == "M"}
    assert rows == {TMA, TENSOR_CORES, EPILOGUE, "stores"}
    last = max(e["ts"] + e["dur"] for e in events if e["ph"] == "X")
    assert last == pytest.approx(found.cycles / found.clock_hz * 1e6)
