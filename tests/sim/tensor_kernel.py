"""A kernel around a few tcgen05 instructions: fills shared and tensor memory, runs, reads back."""

from __future__ import annotations

import numpy as np

from tilecat import sim

A_PLACE, B_PLACE, C_PLACE = 0, 16384, 32768  # operands of mma, source of cp
BARRIER, HOLDER, SMEM = 49152, 49160, 49184
SWIZZLE_CODE = {0: 0, "32B atoms": 1, 128: 2, 64: 4, 32: 6}
COMMIT = "tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [%r4];"
FENCES = ("tcgen05.fence::before_thread_sync;", "tcgen05.fence::after_thread_sync;")


def _words(op: str, columns: int, base: str, moved: str) -> str:
    """Move columns, 8 at a time, between tensor memory and global memory."""
    registers = [f"%w{k}" for k in range(8)]
    quads = [", ".join(registers[:4]), ", ".join(registers[4:])]
    lines = []
    for start in range(0, columns, 8):
        places = [f"[{moved}+{4 * start}]", f"[{moved}+{4 * start + 16}]"]
        if op == "st":
            lines += [f"ld.global.v4.b32 {{{q}}}, {p};" for q, p in zip(quads, places, strict=True)]
        address, data = f"[{base}+{start}]", f"{{{', '.join(registers)}}}"
        operands = f"{address}, {data}" if op == "st" else f"{data}, {address}"
        lines += [f"tcgen05.{op}.sync.aligned.32x32b.x8.b32 {operands};",
                  f"tcgen05.wait::{op}.sync.aligned;"]  # fmt: skip
        if op == "ld":
            lines += [f"st.global.v4.b32 {p}, {{{q}}};" for q, p in zip(quads, places, strict=True)]
    return "\n".join(lines)


def text(
    lines: str, *, filled: int, read: int, target: str = "sm_100a", version: str = "8.8",
    columns: int = 512, copied: int = 24, before: str = "", commit: str = COMMIT,
    fences: tuple[str, str] = FENCES,
) -> str:  # fmt: skip
    """The kernel, 128 threads.

    Args:
        lines: what thread 0 executes; %r5 is the first column, %r6 the shared base / 16.
        filled: columns of tensor memory that are written from `words` before.
        read: columns that are read to `out` after.
        target: `.target`.
        version: `.version`.
        columns: columns that are allocated.
        copied: 2 KiB blocks of `mem` that are copied to shared memory.
        before: what all threads execute before the lines.
        commit: the commit.
        fences: what stands before and after the barrier in front of the lines.
    """
    copy = "\n".join(f"ld.global.v4.b32 {{%r10, %r11, %r12, %r13}}, [%d5+{2048 * k}]; "
                     f"st.shared.v4.b32 [%r3+{2048 * k}], {{%r10, %r11, %r12, %r13}};"
                     for k in range(copied))  # fmt: skip
    return f""".version {version}
.target {target}
.address_size 64
.extern .shared .align 1024 .b8 smem[];
.visible .entry k(.param .u64 mem, .param .u64 words, .param .u64 out)
.maxntid 128, 1, 1
{{
.reg .pred %p<8>; .reg .b32 %r<64>; .reg .b32 %w<128>; .reg .b64 %d<32>;
mov.u32 %r1, %tid.x; mov.u32 %r2, smem; mad.lo.u32 %r3, %r1, 16, %r2;
add.u32 %r4, %r2, {BARRIER}; setp.eq.u32 %p1, %r1, 0; setp.lt.u32 %p2, %r1, 32;
setp.ne.u32 %p3, %r1, %r1; setp.eq.u32 %p4, %r1, %r1;
ld.param.u64 %d1, [mem]; mul.wide.u32 %d2, %r1, 16; add.u64 %d5, %d1, %d2;
{copy}
fence.proxy.async.shared::cta;
@%p1 mbarrier.init.shared::cta.b64 [%r4], 1;
add.u32 %r7, %r2, {HOLDER};
@%p2 tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%r7], {columns};
bar.sync 0;
ld.shared.b32 %r5, [%r7]; shr.u32 %r8, %r1, 5; shl.b32 %r8, %r8, 21; add.u32 %r9, %r5, %r8;
and.b32 %r6, %r2, 0x3FFFF; shr.u32 %r6, %r6, 4;
ld.param.u64 %d3, [words]; mul.wide.u32 %d4, %r1, {4 * max(filled, 1)}; add.u64 %d3, %d3, %d4;
{_words("st", filled, "%r9", "%d3")}
{before}
{fences[0]}
bar.sync 0;
{fences[1]}
setp.ne.u32 %p5, %r1, 0; @%p5 bra ISSUED;
{lines}
{commit}
ISSUED: W: mbarrier.try_wait.parity.shared::cta.b64 %p6, [%r4], 0; @!%p6 bra W;
tcgen05.fence::after_thread_sync; // of the reader
ld.param.u64 %d3, [out]; mul.wide.u32 %d4, %r1, {4 * max(read, 1)}; add.u64 %d3, %d3, %d4;
{_words("ld", read, "%r9", "%d3")}
bar.sync 0;
@%p2 tcgen05.dealloc.cta_group::1.sync.aligned.b32 %r5, {columns};
ret;
}}
"""


def run(ptx: str, shared: np.ndarray, words: np.ndarray, read: int, *, seed: int = 0, **options):
    """Result, and the columns read, (128, read)."""
    memory = np.zeros(49152, np.uint8)
    memory[: len(shared)] = shared
    out = np.zeros((128, max(read, 1)), np.uint32)
    args = [sim.Pointer(a) for a in (memory, np.ascontiguousarray(words, np.uint32), out)]
    result = sim.run(ptx, grid=1, args=args, smem_bytes=SMEM, seed=seed, **options)
    return result, out


def canonical(matrix: np.ndarray, k_major: bool, swizzle) -> tuple[np.ndarray, int, int]:
    """Bytes of an operand (rows x K) in its canonical layout, with LBO and SBO.

    PTX ISA 9.4, 9.7.17.3.3, written with loops over elements, apart from the machine's arrays.
    """
    rows, depth = matrix.shape
    size = matrix.dtype.itemsize
    flat = np.full(16384, 0x38, np.uint8)  # what no operand may read
    wide = swizzle == "32B atoms"
    width = 128 if wide else swizzle or 16
    per = width // size  # elements of a swizzle row
    group = 4 if wide else 8  # rows of K in a swizzle atom
    if k_major:
        sbo, lbo = (8 * width, 16) if swizzle else (128, rows * 16)
    elif swizzle:
        gap = 1 + wide  # atoms apart, so that they are told from one pattern of eight rows
        lbo, sbo = gap * width * depth, gap * group * width
    else:
        sbo, lbo = 128, rows * size * 8
    mask = {0: 0, 32: 1, 64: 3, 128: 7, "32B atoms": 3}[swizzle]
    for r in range(rows):
        for k in range(depth):
            if k_major and swizzle:
                place = r // 8 * sbo + r % 8 * width + k * size
            elif k_major:
                place = r // 8 * sbo + r % 8 * 16 + k * size // 16 * lbo + k * size % 16
            elif swizzle:
                place = r // per * lbo + r % per * size + k // group * sbo + k % group * width
            else:
                place = r * size // 16 * sbo + r * size % 16 + k // 8 * lbo + k % 8 * 16
            place ^= (place // 128 % 8 & mask) * (32 if wide else 16)
            flat[place : place + size] = matrix[r, k : k + 1].view(np.uint8)
    return flat, lbo, sbo


def descriptor(place: int, lbo: int, sbo: int, swizzle, register: str, *, flip: int = 0) -> str:
    """PTX that makes a shared-memory descriptor in a 64-bit register."""
    low = place >> 4 | (lbo >> 4) << 16
    high = sbo >> 4 | 1 << 14 | SWIZZLE_CODE[swizzle] << 29
    return (f"add.u32 %r20, %r6, {low}; mov.b64 {register}, {{%r20, {high}}}; "
            f"xor.b64 {register}, {register}, {flip};")  # fmt: skip
