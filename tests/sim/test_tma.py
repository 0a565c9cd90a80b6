"""Bulk copies: tensors of rank 1 to 5, edges, swizzles, types, reductions, clusters."""

import ml_dtypes
import numpy as np
import pytest

from tilecat import sim
from tilecat.errors import MachineError

from .texts import clean, kernel, kinds, pointers, run, wait

MAPS = ".param .align 64 .b8 mapA[128], .param .align 64 .b8 mapB[128]"
PROLOGUE = """mov.u32 %r1, %tid.x; setp.ne.u32 %p1, %r1, 0; @%p1 bra END;
mov.b64 %d1, mapA; cvta.param.u64 %d1, %d1; mov.b64 %d2, mapB; cvta.param.u64 %d2, %d2;
mov.u32 %r2, smem; add.u32 %r3, %r2, {barrier};
mbarrier.init.shared::cta.b64 [%r3], 1; fence.mbarrier_init.release.cluster;
mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r3], {num_bytes};
{load}
""" + wait("%r3", "0", "W")
STORE = "cp.async.bulk.commit_group; cp.async.bulk.wait_group 0;"


def vector(numbers) -> str:
    """A vector operand."""
    return "{" + ", ".join(str(number) for number in numbers) + "}"


def copy_text(rank: int, from_: tuple, to: tuple, num_bytes: int, store: str = "") -> str:
    """Load a box at `from_` of map A, store it at `to` of map B."""
    load = (f"cp.async.bulk.tensor.{rank}d.shared::cluster.global.tile"
            ".mbarrier::complete_tx::bytes "
            f"[%r2], [%d1, {vector(from_)}], [%r3];")  # fmt: skip
    store = store or (f"cp.async.bulk.tensor.{rank}d.global.shared::cta.tile.bulk_group "
                      f"[%d2, {vector(to)}], [%r2];")  # fmt: skip
    body = PROLOGUE.format(barrier=32768, num_bytes=num_bytes, load=load)
    return kernel(f"{body}\n{store} {STORE}\nEND:", MAPS)


def boxed(array: np.ndarray, start: tuple, box: tuple) -> np.ndarray:
    """The box at a start (innermost first), zero outside: the reference, element by element."""
    out = np.zeros(box[::-1], array.dtype)
    for place in np.ndindex(*out.shape):
        spot = tuple(p + s for p, s in zip(place, start[::-1], strict=True))
        if all(0 <= x < n for x, n in zip(spot, array.shape, strict=True)):
            out[place] = array[spot]
    return out


SHAPES = [
    ((40,), (16,)), ((9, 24), (16, 4)), ((5, 6, 24), (16, 3, 2)),
    ((3, 4, 5, 24), (16, 2, 3, 2)), ((2, 3, 3, 4, 24), (16, 2, 2, 2, 2)),
]  # fmt: skip


@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("offset", [-8, 0, 8])
@pytest.mark.parametrize("shape, box", SHAPES, ids=lambda v: "x".join(map(str, v)))
def test_boxes_of_every_rank_clip_and_fill_with_zero(shape, box, offset, seed):
    rng = np.random.default_rng(0)
    source = rng.integers(1, 2**16, shape).astype(np.uint16)
    target = np.zeros(shape, np.uint16)
    outer = [max(-1, min(offset // 4, extent - 1)) for extent in shape[-2::-1]]
    start = (offset, *outer)
    to = (0, -1, 0, 0, 0)[: len(shape)]
    text = copy_text(len(shape), start, to, 2 * int(np.prod(box)))
    maps = [sim.TensorMap(array, box, 0, "u16") for array in (source, target)]
    clean(run(text, maps, seed=seed))
    tile, want = boxed(source, start, box), np.zeros(shape, np.uint16)
    for place in np.ndindex(*tile.shape):
        spot = tuple(p + s for p, s in zip(place, to[::-1], strict=True))
        if all(0 <= x < n for x, n in zip(spot, shape, strict=True)):
            want[spot] = tile[place]
    np.testing.assert_array_equal(target, want)
    assert want.any()


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16, np.float32, np.float64])
def test_strided_views_and_item_sizes(dtype):
    base = np.arange(6 * 8 * 64).reshape(6, 8, 64).astype(dtype)
    item = np.dtype(dtype).itemsize
    view = base[1:5, ::2, 16:48].transpose(1, 0, 2)  # strides of a permuted slice
    target = np.zeros((4, 4, 32), dtype)
    box = (32 if item < 8 else 16, 3, 2)
    maps = [sim.TensorMap(array, box, 0, "any") for array in (view, target)]
    clean(run(copy_text(3, (0, 1, 2), (0, 0, 0), item * int(np.prod(box))), maps))
    want = np.zeros_like(target)
    want[:2, :3, : box[0]] = boxed(np.ascontiguousarray(view), (0, 1, 2), box)
    np.testing.assert_array_equal(target, want)


@pytest.mark.parametrize("swizzle", [0, 32, 64, 128])
def test_swizzle_places_every_16_byte_chunk(swizzle):
    row_bytes = swizzle or 64
    source = np.random.default_rng(1).integers(0, 256, (16, row_bytes)).astype(np.uint8)
    flat = np.zeros(16 * row_bytes, np.uint8)
    load = ("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%r2], "
            "[%d1, {0, 0}], [%r3];")  # fmt: skip
    body = PROLOGUE.format(barrier=32768, num_bytes=16 * row_bytes, load=load)
    body += ("ld.param.u64 %d3, [out]; cp.async.bulk.global.shared::cta.bulk_group [%d3], [%r2], "
             f"{16 * row_bytes}; {STORE} END:")  # fmt: skip
    text = kernel(body, MAPS + ", .param .u64 out")
    box = (row_bytes, 16)
    clean(run(text, [sim.TensorMap(source, box, swizzle, "u8")] * 2 + pointers(flat)))
    want = np.zeros_like(flat)
    for row in range(16):  # CUDA programming guide, "Shared memory swizzling"
        for chunk in range(row_bytes // 16):
            address = row * row_bytes + 16 * chunk
            mask = {0: 0, 32: 1, 64: 3, 128: 7}[swizzle]
            place = address ^ ((address // 128 % 8) & mask) * 16
            want[place : place + 16] = source[row, 16 * chunk : 16 * chunk + 16]
    np.testing.assert_array_equal(flat, want)
    assert (flat.reshape(16, -1) != source).any() == bool(swizzle)


@pytest.mark.parametrize("operation", ["add", "min", "max"])
@pytest.mark.parametrize("name, dtype", [
    ("f32", np.float32), ("bf16", ml_dtypes.bfloat16), ("f16", np.float16), ("s32", np.int32),
])  # fmt: skip
def test_tensor_reductions(operation, name, dtype):
    rng = np.random.default_rng(2)
    source, target = (rng.integers(-50, 50, (6, 16)).astype(dtype) for _ in range(2))
    function = {"add": np.add, "min": np.minimum, "max": np.maximum}[operation]
    want = target.copy()
    want[2:6, 8:] = function(target[2:6, 8:], source[1:5, :8])
    store = (f"cp.reduce.async.bulk.tensor.2d.global.shared::cta.{operation}.tile.bulk_group "
             "[%d2, {8, 2}], [%r2];")  # fmt: skip
    box = (8, 4)
    num_bytes = 32 * np.dtype(dtype).itemsize
    maps = [sim.TensorMap(array, box, 0, name) for array in (source, target)]
    clean(run(copy_text(2, (0, 1), (0, 0), num_bytes, store), maps))
    np.testing.assert_array_equal(target.astype("f8"), want.astype("f8"))


FLAT = """mov.u32 %r1, %tid.x; setp.ne.u32 %p1, %r1, 0; @%p1 bra END;
ld.param.u64 %d1, [src]; ld.param.u64 %d2, [dst]; mov.u32 %r2, smem; add.u32 %r3, %r2, 8192;
mbarrier.init.shared::cta.b64 [%r3], 1; mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r3], 1024;
cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r2], [%d1], {size}, [%r3];
W: mbarrier.try_wait.parity.shared::cta.b64 %p15, [%r3], 0; @!%p15 bra W;
{store} cp.async.bulk.commit_group; cp.async.bulk.wait_group 0; END:"""
FLAT_STORE = "cp.async.bulk.global.shared::cta.bulk_group [%d2], [%r2], 1024;"
FLAT_PARAMS = ".param .u64 src, .param .u64 dst"


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_flat_copies_and_reduction(seed):
    source = np.arange(256, dtype=np.float32)
    target = np.ones(256, np.float32)
    text = kernel(FLAT.format(size=1024, store=FLAT_STORE), FLAT_PARAMS)
    clean(run(text, pointers(source, target), seed=seed))
    assert target.tolist() == source.tolist()
    add = "cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [%d2], [%r2], 1024;"
    clean(run(kernel(FLAT.format(size=1024, store=add), FLAT_PARAMS), pointers(source, target)))
    assert target.tolist() == (2 * source).tolist()


def test_flat_copy_rules():
    source, target = np.zeros(256, np.float32), np.zeros(256, np.float32)
    for size, kind in ((1020, "align"), (2048, "bounds"), (512, "deadlock")):
        text = kernel(FLAT.format(size=size, store=FLAT_STORE), FLAT_PARAMS)
        assert kinds(run(text, pointers(source, target))) == {kind}


def test_missing_expect_and_misaligned_destination():
    source, target = np.zeros((16, 64), np.uint16), np.zeros((16, 64), np.uint16)
    maps = [sim.TensorMap(array, (64, 16), 128, "u16") for array in (source, target)]
    text = copy_text(2, (0, 0), (0, 0), 2048)
    clean(run(text, maps))
    late = text.replace("[%r2]", "[%r2+512]")
    assert "align" in kinds(run(late, maps))
    assert kinds(run(text.replace("[%r3], 2048;", "[%r3], 2064;"), maps)) == {"deadlock"}


BAD_MAPS = [
    ((16, 4), (16, 20), 0, np.uint16, "multiples of 16"),  # row stride 40 bytes
    ((20, 4), (16, 16), 0, np.uint16, "multiple of 16 bytes"),  # inner box 40 bytes
    ((128, 4), (16, 128), 64, np.uint16, "at most the swizzle"),
    ((300,), (512,), 0, np.uint8, "box 1 to 256"),
    ((16, 4), (4, 4, 16), 0, np.uint16, "rank 1 to 5"),
    ((64, 4), (4, 64), 96, np.uint16, "swizzle 0, 32, 64 or 128"),
]


@pytest.mark.parametrize("box, shape, swizzle, dtype, message", BAD_MAPS)
def test_tensor_maps_the_driver_refuses(box, shape, swizzle, dtype, message):
    array = np.zeros(shape, dtype)
    text = copy_text(2, (0, 0), (0, 0), 16)
    with pytest.raises(MachineError, match=message):
        run(text, [sim.TensorMap(array, box, swizzle, "u16")] * 2)


def test_misaligned_base_of_a_view_is_refused():
    base = np.zeros((8, 64), np.uint16)
    text = copy_text(2, (0, 0), (0, 0), 16)
    with pytest.raises(MachineError, match="base address a multiple of 16"):
        run(text, [sim.TensorMap(base[:, 1:33], (16, 4), 0, "u16")] * 2)


MULTICAST = """mov.u32 %r1, %tid.x; mov.u32 %r4, %cluster_ctarank; mov.u32 %r2, smem;
add.u32 %r3, %r2, 8192; mov.b64 %d1, mapA; cvta.param.u64 %d1, %d1;
setp.ne.u32 %p1, %r1, 0; @%p1 bra READY;
mbarrier.init.shared::cta.b64 [%r3], 1; fence.mbarrier_init.release.cluster;
mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r3], 256;
READY: barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;
setp.eq.u32 %p2, %r4, {rank}; setp.eq.and.u32 %p3, %r1, 0, %p2; mov.b16 %h1, {mask};
@%p3 cp.async.bulk.tensor.1d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster
  [%r2], [%d1, {{16}}], [%r3], %h1;
W: mbarrier.try_wait.parity.shared::cta.b64 %p15, [%r3], 0; @!%p15 bra W;
shl.b32 %r5, %r1, 2; add.u32 %r5, %r5, %r2; ld.shared.b32 %r6, [%r5];
mad.lo.u32 %r7, %r4, 64, %r1; ld.param.u64 %d3, [out]; mul.wide.u32 %d4, %r7, 4;
add.u64 %d3, %d3, %d4; st.global.b32 [%d3], %r6;
barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;"""


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("rank", [0, 3])
def test_multicast_to_a_cluster_of_four(rank, seed):
    source, out = np.arange(128, dtype=np.uint32), np.zeros((4, 64), np.uint32)
    params = MAPS.split(", ")[0] + ", .param .u64 out"
    text = kernel(MULTICAST.format(mask=15, rank=rank), params, 64,
                  ".explicitcluster\n.reqnctapercluster 4, 1, 1")  # fmt: skip
    args = [sim.TensorMap(source, (64,), 0, "u32"), *pointers(out)]
    clean(run(text, args, grid=4, seed=seed))
    assert (out == np.arange(16, 80)).all()
    less = text.replace("mov.b16 %h1, 15", "mov.b16 %h1, 7")
    result = run(less, args, grid=4, seed=seed)
    assert "deadlock" in kinds(result) and "256 bytes missing" in str(result)
    more = text.replace("mov.b16 %h1, 15", "mov.b16 %h1, 31")
    assert kinds(run(more, args, grid=4, seed=seed)) == {"bounds"}


@pytest.mark.parametrize("seed", [0, 1])
def test_a_peer_must_have_started(seed):
    source, out = np.arange(128, dtype=np.uint32), np.zeros((4, 64), np.uint32)
    text = kernel(MULTICAST.format(mask=15, rank=3), MAPS.split(", ")[0] + ", .param .u64 out", 64,
                  ".explicitcluster\n.reqnctapercluster 4, 1, 1")  # fmt: skip
    args = [sim.TensorMap(source, (64,), 0, "u32"), *pointers(out)]
    early = text.replace("barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;", "", 1)
    found = run(early, args, grid=4, seed=seed)
    assert "start" in kinds(found), str(found)
    assert "uses shared memory of CTA 0, which may not have started" in str(found)
    relaxed = text.replace("arrive.aligned", "arrive.relaxed.aligned", 1)
    assert "start" not in kinds(run(relaxed, args, grid=4, seed=seed))


def test_exit_with_a_copy_in_flight():
    source = np.zeros((16, 64), np.uint16)
    text = copy_text(2, (0, 0), (0, 0), 2048).replace(wait("%r3", "0", "W"), "bra END;")
    for seed in range(3):
        result = run(text, [sim.TensorMap(source, (64, 16), 0, "u16")] * 2, seed=seed)
        assert kinds(result) == {"exit"}
        assert ("in flight" if seed == 0 else "has exited") in str(result)


@pytest.mark.parametrize("swizzle", [0, 32, 64, 128])
@pytest.mark.parametrize("start", [8, -8, 4, 2, 1, -1, -4])
@pytest.mark.parametrize("what", ["load", "store", "prefetch"])
def test_a_box_begins_at_a_multiple_of_16_bytes(what, start, swizzle):
    """And a store, as an H200 has it, at none that is negative: tests/gpu/test_launch.py."""
    box = ((swizzle or 32) // 2, 8)
    source = np.arange(1, 8 * 128 + 1, dtype=np.uint16).reshape(8, 128)
    target = np.zeros_like(source)
    maps = [sim.TensorMap(array, box, swizzle, "u16") for array in (source, target)]
    at = {what: (start, 0)}
    text = copy_text(2, at.get("load", (0, 0)), at.get("store", (0, 0)), 2 * box[0] * box[1])
    if what == "prefetch":
        line = f"cp.async.bulk.prefetch.tensor.2d.L2.global.tile [%d1, {vector((start, 0))}];\n"
        text = text.replace("mbarrier.init", line + "mbarrier.init", 1)
    found = run(text, maps)
    if start % 8:
        assert kinds(found) == {"align"}
        assert f"coordinate {start} is no multiple of 16 bytes" in str(found.reports)
    elif what == "store" and start < 0:
        assert kinds(found) == {"bounds"}
        assert f"a store begins at the negative innermost coordinate {start}" in str(found.reports)
    else:
        clean(found)
        tile, place = boxed(source, at.get("load", (0, 0)), box), at.get("store", (0, 0))[0]
        np.testing.assert_array_equal(target[:, place : place + box[0]], tile)


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16, np.float32])
def test_the_innermost_coordinate_counts_in_bytes(dtype):
    source = np.ones((8, 64), dtype)
    unit = 16 // source.itemsize
    maps = [sim.TensorMap(array, (unit, 8), 0, "any") for array in (source, source * 0)]
    for start in range(unit + 1):
        found = run(copy_text(2, (start, 0), (0, 0), 128), maps)
        assert kinds(found) == ({"align"} if start % unit else set())


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("short", [0, 4, 8, 16])
@pytest.mark.parametrize(
    "kind, reduce", [("u8", 0), ("u16", 0), ("f32", 0), ("bf16", 1), ("f32", 1)]
)
def test_a_store_meets_no_end_beside_16_bytes(kind, reduce, short, seed):
    """An H200 writes what follows too: tests/gpu/test_launch.py. Loads end anywhere."""
    dtype = {"u8": np.uint8, "u16": np.uint16, "f32": np.float32, "bf16": ml_dtypes.bfloat16}[kind]
    item = np.dtype(dtype).itemsize
    unit = 16 // item
    source, target = (
        np.full((8, 3 * unit), value, dtype)[:, : 2 * unit - short // item] for value in (1, 0)
    )
    maps = [sim.TensorMap(array, (unit, 8), 0, kind) for array in (source, target)]
    for start in (0, unit, 2 * unit):
        line = ""
        if reduce:
            line = (f"cp.reduce.async.bulk.tensor.2d.global.shared::cta.add.tile.bulk_group "
                    f"[%d2, {{{start}, 0}}], [%r2];")  # fmt: skip
        found = run(copy_text(2, (start, 0), (start, 0), 128, line), maps, seed=seed)
        meets = short % 16 and start == unit
        assert kinds(found) == ({"bounds"} if meets else set()), str(found)
        if meets:
            assert f"{32 - short} bytes, which is no multiple of 16: it also writes the {short} " \
                   "bytes behind it" in str(found.reports)  # fmt: skip
