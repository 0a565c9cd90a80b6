"""tcgen05's descriptors: published constants, and bits there and back."""

from __future__ import annotations

import random

import pytest

from tilecat.arch import ARCHS
from tilecat.errors import LayoutError
from tilecat.ptx.tensor_descriptors import KINDS, InstructionDescriptor, SharedDescriptor


def dense(kind: str, types: str, m: int, n: int, sums: str = "f32", **fields: object):
    a, _, b = types.partition(" ")
    return InstructionDescriptor(kind, a, b or a, m, n, sums, **fields)


def scaled(kind: str, types: str, m: int, n: int, scale: str = "ue8m0", **fields: object):
    return dense(kind, types, m, n, scale=scale, **fields)


# Bits found in the PTX that Triton 3.9 and Gluon write, or given by CUTLASS and CuTe for a shape.
INSTRUCTIONS = [
    (0x08400490, dense("f16", "bf16", 128, 256)),
    (0x08200490, dense("f16", "bf16", 128, 128)),
    (0x04200490, dense("f16", "bf16", 64, 128)),
    (0x08200010, dense("f16", "f16", 128, 128)),
    (0x08100000, dense("f16", "f16", 128, 64, "f16")),
    (0x08208490, dense("f16", "bf16", 128, 128, a_mn_major=True)),
    (0x08210490, dense("f16", "bf16", 128, 128, b_mn_major=True)),
    (0x08090490, dense("f16", "bf16", 128, 32, b_mn_major=True)),
    (0x10200490, dense("f16", "bf16", 256, 128)),
    (0x10400490, dense("f16", "bf16", 256, 256)),
    (0x08200910, dense("tf32", "tf32", 128, 128)),
    (0x08200010, dense("f8f6f4", "e4m3", 128, 128)),
    (0x08200090, dense("f8f6f4", "e5m2 e4m3", 128, 128)),
    (0x28200010, dense("f8f6f4", "e4m3", 128, 128, wide_k=True)),
    (0x30200010, dense("f8f6f4", "e4m3", 256, 128, wide_k=True)),
    (0x30400010, dense("f8f6f4", "e4m3", 256, 256, wide_k=True)),
    (0x28208010, dense("f8f6f4", "e4m3", 128, 128, wide_k=True, a_mn_major=True)),
    (0x082004A0, dense("i8", "s8", 128, 128, "s32")),
    (0x08A00000, scaled("mxf8f6f4", "e4m3", 128, 128)),
    (0x28A00010, scaled("mxf8f6f4", "e4m3", 128, 128, sfa_id=1, sfb_id=1)),
    (0x48A00020, scaled("mxf8f6f4", "e4m3", 128, 128, sfa_id=2, sfb_id=2)),
    (0x68A00030, scaled("mxf8f6f4", "e4m3", 128, 128, sfa_id=3, sfb_id=3)),
    (0x08A01400, scaled("mxf8f6f4", "e4m3 e2m1", 128, 128)),
    (0x88A00000, scaled("mxf8f6f4", "e4m3", 128, 128, wide_k=True)),
    (0xC8A00020, scaled("mxf8f6f4", "e4m3", 128, 128, wide_k=True, sfa_id=2, sfb_id=2)),
    (0x90C00000, scaled("mxf8f6f4", "e4m3", 256, 256, wide_k=True)),
    (0x08A00480, scaled("mxf4", "e2m1", 128, 128)),
    (0x48A004A0, scaled("mxf4", "e2m1", 128, 128, sfa_id=2, sfb_id=2)),
    (0x08A00488, scaled("mxf4", "e2m1", 128, 128, wide_k=True)),
    (0x08200480, scaled("mxf4nvf4", "e2m1", 128, 128, "ue4m3")),
    (0x08200488, scaled("mxf4nvf4", "e2m1", 128, 128, "ue4m3", wide_k=True)),
    (0x10401488, scaled("mxf4nvf4", "e2m1", 256, 256, "ue4m3", wide_k=True, version=1)),
]
OPERANDS = [
    (0x4000404000000000, SharedDescriptor(0, 0, 1024)),
    (0x8000402000000000, SharedDescriptor(0, 0, 512, swizzle_bytes=64)),
    (0xC000401000000000, SharedDescriptor(0, 0, 256, swizzle_bytes=32)),
    (0x0008400800000000, SharedDescriptor(0, 0, 128, base_offset=4, swizzle_bytes=0)),
]


@pytest.mark.parametrize(("bits", "meant"), INSTRUCTIONS, ids=lambda v: f"{v}"[:60])
def test_instruction_descriptor_has_the_published_bits(bits: int, meant: InstructionDescriptor):
    assert hex(meant.encode()) == hex(bits)
    assert InstructionDescriptor.decode(meant.kind, bits) == meant


@pytest.mark.parametrize(("bits", "meant"), OPERANDS, ids=lambda v: f"{v}"[:60])
def test_shared_descriptor_has_the_published_bits(bits: int, meant: SharedDescriptor):
    assert hex(meant.encode()) == hex(bits)
    assert SharedDescriptor.decode(bits) == meant


def test_operands_come_back_from_their_bits():
    chance = random.Random(7)
    for _ in range(500):
        meant = SharedDescriptor(
            16 * chance.randrange(1 << 15), 16 * chance.randrange(1 << 15),
            16 * chance.randrange(1 << 14), chance.randrange(8), chance.random() < 0.5,
            chance.randrange(2), chance.choice([0, 32, 64, 128, "128 by 32"]),
        )  # fmt: skip
        assert SharedDescriptor.decode(meant.encode()) == meant


@pytest.mark.parametrize("arch", ARCHS[1:], ids=lambda arch: arch.target)
def test_instructions_of_every_row_come_back_from_their_bits(arch):
    chance, kinds = random.Random(11), set()
    for form in arch.tensor_forms:
        kinds.add(form.kind)
        for shape in (*form.shapes, *form.wide_shapes):
            wide = shape in form.wide_shapes and chance.random() < 0.5
            meant = InstructionDescriptor(
                form.kind, form.a, form.b, shape.m, chance.choice(shape.n), form.accumulator,
                a_mn_major=form.mn_major and chance.random() < 0.5,
                b_mn_major=form.mn_major and chance.random() < 0.5,
                negate_a=form.signs and chance.random() < 0.5, wide_k=wide, scale=form.scale,
                sfa_id=2 * bool(form.block), saturate=form.kind == "i8",
            )  # fmt: skip
            bits = meant.encode()
            assert 0 <= bits < 1 << 32
            assert InstructionDescriptor.decode(form.kind, bits) == meant
    assert kinds == set(KINDS) - ({"i8"} if arch.tensor_form("s8", "s8", "s32") is None else set())


@pytest.mark.parametrize(
    ("record", "text"),
    [
        (dense("f16", "e4m3", 128, 128), "a is one of f16, bf16, got a='e4m3'"),
        (dense("f16", "bf16", 120, 128), "m is a multiple of 16 from 0 to 496, got m=120"),
        (dense("f16", "bf16", 128, 4), "n is a multiple of 8 from 0 to 504, got n=4"),
        (dense("f16", "bf16", 128, 64, "s32"), "accumulator is one of f16, f32"),
        (dense("tf32", "tf32", 128, 64, wide_k=True), "kind::tf32 has no wide_k, got wide_k=True"),
        (scaled("mxf4", "e2m1", 128, 64, b_mn_major=True), "kind::mxf4 has no b_mn_major"),
        (scaled("mxf4", "e2m1", 128, 64, wide_k=True, k_96=True), "K is 96 or the wide step"),
        (scaled("mxf8f6f4", "e4m3", 64, 64), "m is a multiple of 128"),
        (dense("f12", "e2m1", 128, 64), "kind is one of f16, tf32"),
        (SharedDescriptor(8, 0, 1024), "address is a multiple of 16"),
        (SharedDescriptor(1 << 19, 0, 1024), "address is a multiple of 16 from 0 to 524272"),
        (SharedDescriptor(0, 0, 1024, swizzle_bytes=96), "swizzle_bytes is one of 0, 128, 64"),
    ],
)
def test_a_value_that_its_field_does_not_hold_is_refused(record, text: str):
    with pytest.raises(LayoutError, match=text):
        record.encode()


def test_bits_that_nothing_reads_are_refused():
    with pytest.raises(LayoutError, match="kind::tf32 has no bits 0x8"):
        InstructionDescriptor.decode("tf32", 0x08200918)
    with pytest.raises(LayoutError, match="bits 46-48 are 0b001"):
        SharedDescriptor.decode(0x4000004000000000)
    with pytest.raises(LayoutError, match="no a has the code 2"):
        InstructionDescriptor.decode("f8f6f4", 0x08200110)
