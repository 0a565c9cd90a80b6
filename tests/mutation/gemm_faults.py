"""Faults of the matmul kernel: matrix descriptors, tiles of A and B, coordinates, accumulation."""

from __future__ import annotations

from .edits import EVERY, Fault, number
from .faults import COMMON, LOADS, STAGING

_A_BITS = r"(mov\.b64 %desc3, \{%desc, )(\d+)(\})"
_B_BITS = r"(mov\.b64 %desc4, \{%desc2, )(\d+)(\})"
_MMA = r"(wgmma\.mma_async\S* \{[^}]*\}, %desc\d+, %desc\d+, )(%\w+)"

DESCRIPTORS = (
    Fault("descriptor", "LBO of A, which K-major swizzled tiles do not use",
          r"^( *or\.b32 %desc, %desc, )(\d+)(;)", number(lambda n: 2 * n), "consumer"),
    Fault("descriptor", "stride offset (SBO) of A one row group too far", _A_BITS,
          number(lambda n: n + 64), "consumer"),
    Fault("descriptor", "stride offset (SBO) of A 16 bytes too far", _A_BITS,
          number(lambda n: n + 1), "consumer"),
    Fault("descriptor", "stride offset (SBO) of B halved", _B_BITS, number(lambda n: n - 32),
          "consumer"),
    Fault("descriptor", "64-byte swizzle of A", _A_BITS, number(lambda n: n + (1 << 30)),
          "consumer"),
    Fault("descriptor", "64-byte swizzle of B", _B_BITS, number(lambda n: n + (1 << 30)),
          "consumer"),
    Fault("descriptor", "no swizzle of A", _A_BITS, number(lambda n: n - (1 << 30)), "consumer"),
    Fault("descriptor", "base offset of A", _A_BITS, number(lambda n: n + (1 << 17)), "consumer"),
    Fault("descriptor", "start address in bytes, not in 16 bytes",
          r"(shr\.u32 %desc, %desc, )4;", r"\g<1>3;", "consumer"),
    Fault("descriptor", "start address cut to 14 bits", r"(and\.b32 %desc2, %\w+, )262143;",
          r"\g<1>16383;", "consumer"),
    Fault("descriptor", "A advances by two K steps", r"(add\.s32 %\w+, %desc, )2;", r"\g<1>4;",
          "consumer"),
    Fault("descriptor", "A does not advance", r"(add\.s32 %\w+, %desc, )2;", r"\g<1>0;",
          "consumer"),
    Fault("descriptor", "B advances along N", r"(add\.s32 %\w+, %desc2, )128;", r"\g<1>2;",
          "consumer"),
    Fault("descriptor", "B advances by half a K step", r"(add\.s32 %\w+, %desc2, )128;",
          r"\g<1>64;", "consumer"),
)  # fmt: skip

PANELS = (
    Fault("descriptor", "leading offset (LBO) of B halved",
          r"^( *or\.b32 %desc2, %desc2, )(\d+)(;)", number(lambda n: n // 2), "consumer"),
)  # fmt: skip

TILES = (
    Fault("overlap", "loads of A overlap", r"(mad\.lo\.u32 %at\d+, %a_first, )8192,",
          r"\g<1>4096,", "producer"),
    Fault("overlap", "stages of A overlap, on both sides",
          r"(mad\.lo\.u32 %at\d+, %a_(?:first|tile)\d*, )8192,", r"\g<1>4096,", "", EVERY),
    Fault("overlap", "B is loaded over the last tile of A",
          r"(\[%\w+\+)(\d+)(\], \[%map_B)", number(lambda n: n - 8192), "producer"),
    Fault("overlap", "stages of B overlap, on both sides",
          r"(mad\.lo\.u32 %at\d+, %stage_slot\d+, )(8192|16384|24576)(,)",
          number(lambda n: n // 2), "", EVERY),
    Fault("stage", "all consumers read the first tile of A",
          r"(add\.s32 %a_tile\d*), (%\w+), %\w+;", r"\1, \2, 0;", "consumer"),
    Fault("coordinates", "both tiles of A are the first", r"(add\.s32 %\w+, %\w+, )1;(\n"
          r"(?: *\.loc.*\n)* *add\.s32 %a_tile, )", r"\g<1>0;\2", "producer"),
    Fault("coordinates", "rows of A 32 apart", r"(shl\.b32 %A_at_M, %\w+, )6;", r"\g<1>5;",
          "producer"),
    Fault("coordinates", "K steps of 32", r"(shl\.b32 %A_at_K, %\w+, )6;", r"\g<1>5;", "producer"),
    Fault("coordinates", "columns of B half a tile apart", r"(shl\.b32 %B_at_N, %\w+, |"
          r"mul\.lo\.s32 %B_at_N, %\w+, )(\d+)(;)", number(lambda n: n - 1), "producer"),
    Fault("coordinates", "rows of C of the first consumer only",
          r"(add\.s32 (%\w+), %\w+, )%\w+;(\n(?: *\.loc.*\n)* *shl\.b32 %C_at_M, \2)",
          r"\g<1>0;\3", "consumer"),
    Fault("schedule", "producer loads one K step less", r"setp\.lt(\.s32 %\w+, %i2, %A_K_blocks)",
          r"setp.le\1", "producer"),
    Fault("schedule", "consumer computes one K step less",
          r"(mov\.b32 (%i\d+), )0;(\n *setp\.ge\.s32 %\w+, \2, %A_K_blocks)", r"\g<1>1;\3",
          "consumer"),
    Fault("schedule", "consumer computes one K step more",
          r"setp\.lt(\.s32 %\w+, %i\d+, %A_K_blocks)", r"setp.le\1", "consumer"),
    Fault("stage", "the stage in use is given back",
          r"(mad\.lo\.u32 %at\d+, )%\w+(, 8, %base;\n *and\.pred)", r"\1%stage_slot6\2",
          "consumer"),
)  # fmt: skip

MMA = (
    Fault("operands", "A and B swapped", r"(\{[^}]*\}), (%desc\d+), (%desc\d+), ", r"\1, \3, \2, ",
          "consumer"),
    Fault("operands", "the wgmma of one K step repeated for the next",
          r"(\{[^}]*\}, )%desc5, %desc6, ", r"\1%desc3, %desc4, ", "consumer"),
    Fault("operands", "B not transposed", r"(, 1, 1, 0, )1;", r"\g<1>0;", "consumer", EVERY),
    Fault("operands", "A transposed", r"(, 1, 1, )0(, 1;)", r"\g<1>1\2", "consumer"),
    Fault("operands", "A negated", r", 1, 1, 0, 1;", ", -1, 1, 0, 1;", "consumer"),
    Fault("operands", "two accumulator registers swapped", r"\{%acc_0, %acc_1,",
          r"{%acc_1, %acc_0,", "consumer"),
    Fault("scale-d", "the first wgmma adds to the last task's sum", _MMA, r"\1%true", "consumer"),
    Fault("scale-d", "the second wgmma forgets the first",
          rf"({_MMA[1:]}(.*\n(?:.*\n)*?.*%desc5, %desc6, )%true", r"\1\2\3\2", "consumer"),
    Fault("scale-d", "accumulation starts a step late",
          r"(setp\.gt\.s32 %\w+, %i\d+, )0;", r"\g<1>1;", "consumer"),
)  # fmt: skip

THREADS = (
    Fault("order", "the async proxy's fence after the arrival",
          r"^( *fence\.proxy\.async.*\n)((?:.*\n)*?)( *mbarrier\.arrive\.shared.*\n)", r"\2\3\1",
          "producer"),
    Fault("order", "the async proxy's fence before the copies",
          r"^( *and\.b32 %item\d*, %thread, 127;\n)((?:.*\n)*?)( *fence\.proxy\.async.*\n)",
          r"\3\1\2", "producer"),
    Fault("predicate", "one thread arrives for all", r"^( *)(mbarrier\.arrive\.shared)",
          r"\1@%lead \2", "producer"),
    Fault("predicate", "every thread announces the bytes", r"@%lead (mbarrier\.arrive\.expect_tx)",
          r"\1", "producer"),
    Fault("predicate", "every thread loads B", r"@%lead (cp\.async\.bulk\.tensor)", r"\1",
          "producer"),
    Fault("predicate", "elements outside A are read", r"@%inside ld\.global", "ld.global",
          "producer"),
    Fault("predicate", "elements outside C are written", r"@%inside\d* st\.global", "st.global",
          "consumer"),
    Fault("staging address", "the copy forgets the swizzle",
          r"(xor\.b32 %byte), %byte, %swizzle;", r"mov.b32 %byte, %byte;", "producer"),
    Fault("staging address", "the copy back forgets the swizzle",
          r"xor\.b32 (%byte\d), %byte\d, %swizzle\d;", r"mov.b32 \1, \1;", "consumer"),
    Fault("coordinates", "the copy stops one round early",
          r"(setp\.lt\.u32 %done\d, %item, )4096;", r"\g<1>3968;", "producer"),
    Fault("coordinates", "the copy takes every 64th element", r"(add\.u32 %item, %item, )128;",
          r"\g<1>64;", "producer"),
)  # fmt: skip

_ALWAYS = (*COMMON, *DESCRIPTORS, *TILES, *MMA)
BY_TMA = (*_ALWAYS, *PANELS, *LOADS, *STAGING)
BY_THREADS = (*_ALWAYS, *THREADS)
