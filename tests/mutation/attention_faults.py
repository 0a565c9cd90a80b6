"""Faults of the attention kernel: descriptors, Q, K and V, masks, softmax, turns."""

from __future__ import annotations

from .edits import EVERY, Fault, number
from .faults import COMMON, LOADS, STAGING

_HIGH = r"(mov\.b64 %desc\d+, \{%\w+, )(\d+)(\})"
_Q, _K, _V = 0, 1, 16  # which of them in the consumer's text

DESCRIPTORS = (
    Fault("descriptor", "LBO of Q, which K-major swizzled tiles do not use",
          r"^( *or\.b32 %desc, %desc, )(\d+)(;)", number(lambda n: 2 * n), "consumer"),
    Fault("descriptor", "stride offset (SBO) of Q 16 bytes too far", _HIGH, number(lambda n: n + 1),
          "consumer", _Q),
    Fault("descriptor", "stride offset (SBO) of K halved", _HIGH, number(lambda n: n - 32),
          "consumer", _K),
    Fault("descriptor", "stride offset (SBO) of V one row group too far", _HIGH,
          number(lambda n: n + 64), "consumer", _V),
    Fault("descriptor", "64-byte swizzle of Q", _HIGH, number(lambda n: n + (1 << 30)), "consumer",
          _Q),
    Fault("descriptor", "no swizzle of K", _HIGH, number(lambda n: n - (1 << 30)), "consumer", _K),
    Fault("descriptor", "64-byte swizzle of V", _HIGH, number(lambda n: n + (1 << 30)), "consumer",
          _V),
    Fault("descriptor", "base offset of K", _HIGH, number(lambda n: n + (1 << 17)), "consumer", _K),
    Fault("descriptor", "start address of K in bytes", r"(shr\.u32 %desc2, %desc2, )4;",
          r"\g<1>3;", "consumer"),
    Fault("descriptor", "start address of K cut to 14 bits", r"(and\.b32 %desc2, %\w+, )262143;",
          r"\g<1>16383;", "consumer"),
    Fault("descriptor", "Q advances by two K steps", r"(add\.s32 %\w+, %desc, )2;", r"\g<1>4;",
          "consumer"),
    Fault("descriptor", "K does not advance", r"(add\.s32 %\w+, %desc2, )2;", r"\g<1>0;",
          "consumer"),
    Fault("descriptor", "V advances along D", r"(add\.s32 %\w+, %desc\d+, )128;", r"\g<1>2;",
          "consumer"),
)  # fmt: skip

TILES = (
    Fault("overlap", "stages of K overlap, on both sides",
          r"(mad\.lo\.u32 %at\d+, %k_slot\d+, )16384,", r"\g<1>8192,", "", EVERY),
    Fault("overlap", "V is loaded over the last stage of K", r"(\[%\w+\+)(\d+)(\], \[%map_V)",
          number(lambda n: n - 16384), "producer"),
    Fault("overlap", "K is loaded over the last tile of Q", r"(\[%\w+\+)(\d+)(\], \[%map_K)",
          number(lambda n: n - 8192), "producer"),
    Fault("stage", "all consumers wait for the first tile of Q",
          r"(mad\.lo\.u32 %at\d+, %consumer, )8,", r"\g<1>0,", "consumer"),
    Fault("stage", "all consumers read the first tile of Q",
          r"(mad\.lo\.u32 %at\d+, %consumer, )8192,", r"\g<1>0,", "consumer"),
    Fault("coordinates", "two tiles of Q are one", r"(add\.s32 %\w+, %\w+, )1;(\n\$wait)",
          r"\g<1>0;\2", "producer"),
    Fault("coordinates", "rows of Q 32 apart", r"(shl\.b32 %Q_at_Lq, %\w+, )6;", r"\g<1>5;",
          "producer"),
    Fault("coordinates", "rows of K and V 64 apart", r"(shl\.b32 %K_at_Lk, %\w+, )7;", r"\g<1>6;",
          "producer"),
    Fault("coordinates", "key blocks from the first to the last",
          r"sub\.s32 (%\w+), %\w+, %i2;", r"mov.b32 \1, %i2;", "producer"),
    Fault("coordinates", "heads of K and V not grouped",
          r"div\.s32 (%head\d*), %head, %\w+;", r"mov.b32 \1, %head;", "producer"),
    Fault("coordinates", "K loaded in place of V", r"\[%map_V,", "[%map_K,", "producer"),
    Fault("schedule", "producer loads one key block more",
          r"setp\.lt(\.s32 %\w+, %i2, %\w+)", r"setp.le\1", "producer"),
    Fault("schedule", "consumer skips a key block",
          r"(mov\.b32 (%i\d+), )1;(\n *setp\.ge\.s32 %\w+, \2, %steps)", r"\g<1>2;\3",
          "consumer"),
    Fault("schedule", "consumer takes one key block more",
          r"setp\.lt(\.s32 %\w+, %i\d+, %steps)", r"setp.le\1", "consumer"),
    Fault("wait count", "S is used before its wgmma are waited for",
          r"(wgmma\.wait_group\.sync\.aligned )(1)(;)", number(lambda n: n + 1), "consumer"),
)  # fmt: skip

MMA = (
    Fault("operands", "Q and K swapped", r"(\{[^}]*\}), (%desc\d+), (%desc\d+), ", r"\1, \3, \2, ",
          "consumer"),
    Fault("operands", "V not transposed", r"(\}, %desc\d+, %true, 1, 1, )1;", r"\g<1>0;",
          "consumer", EVERY),
    Fault("operands", "K transposed", r"(, 1, 1, 0, )0;", r"\g<1>1;", "consumer"),
    Fault("operands", "Q negated", r", 1, 1, 0, 0;", ", -1, 1, 0, 0;", "consumer"),
    Fault("operands", "two registers of P swapped", r"\{%p_0, %p_1,", r"{%p_1, %p_0,", "consumer"),
    Fault("operands", "P of one K step used twice", r"\{%p_4, %p_5, %p_6, %p_7\}",
          "{%p_0, %p_1, %p_2, %p_3}", "consumer"),
    Fault("scale-d", "S adds to the last step's", r"(%desc\d+, %desc\d+, )%false", r"\1%true",
          "consumer", 1),
    Fault("scale-d", "a part of S forgets the parts before", r"(%desc\d+, %desc\d+, )%true",
          r"\1%false", "consumer", 3),
    Fault("scale-d", "O forgets the key blocks before", r"(\}, %desc\d+, )%true", r"\1%false",
          "consumer"),
)  # fmt: skip

SOFTMAX = (
    Fault("mask", "columns outside K are kept", r"(setp\.gt\.s32 %keep\d*, %limit, )(\d+);",
          r"\g<1>-4096;", "consumer", EVERY),
    Fault("mask", "one column too many is masked", r"(setp\.gt\.s32 %keep\d*, %limit, )(\d+)(;)",
          number(lambda n: n + 1), "consumer", EVERY),
    Fault("mask", "every lane masks as the first", r"sub\.s32 %limit, (%\w+), %lane_col;",
          r"mov.b32 %limit, \1;", "consumer"),
    Fault("softmax", "the maximum of two lanes of four", r"(shfl\.sync\.bfly\.b32 %\w+, %\w+, )2,",
          r"\g<1>0,", "consumer"),
    Fault("softmax", "the sum of two lanes of four", r"(shfl\.sync\.bfly\.b32 %\w+, %\w+, )2,",
          r"\g<1>0,", "consumer", -1),
    Fault("softmax", "a column of O is not rescaled", r"^ *mul\.rn\.f32 (%\w+_0), \1, %\w+_0;\n",
          "", "consumer"),
    Fault("softmax", "the sum forgets the key blocks before",
          r"fma\.rn\.f32 (%\w+_0), \1, %\w+_0, (%\w+_0);", r"mov.f32 \1, \2;", "consumer", -1),
    Fault("conversion", "halves of P swapped",
          r"(cvt\.rn\.bf16x2\.f32 %p_\d+), (%\w+), (%\w+);", r"\1, \3, \2;", "consumer"),
    Fault("predicate", "rows outside the log-sum-exp are stored",
          r"@%\w+ st\.global", "st.global", "consumer", EVERY),
    Fault("coordinates", "rows of the log-sum-exp 8 a warp",
          r"(mad\.lo\.u32 %lane_row, %warp, )16,", r"\g<1>8,", "consumer"),
)  # fmt: skip

TURNS = (
    Fault("named barrier", "every consumer gives the first turn",
          r"^ *@!%\w+ bra \$endif.*\n( *bar\.arrive)", r"\1", "consumer"),
    Fault("named barrier", "a turn counts one consumer", r"(bar\.sync %\w+, )256;", r"\g<1>128;",
          "consumer"),
    Fault("named barrier", "a turn goes back to its own consumer",
          r"(add\.s32 %\w+, )%\w+, 8;(\n(?: *\.loc.*\n)* *bar\.arrive)", r"\1%consumer, 8;\2",
          "consumer"),
    Fault("named barrier", "all turns at one barrier", r"(add\.s32 %\w+), %consumer, 8;",
          r"\1, 0, 8;", "consumer"),
)  # fmt: skip

ALL = (*COMMON, *STAGING, *LOADS, *DESCRIPTORS, *TILES, *MMA, *SOFTMAX, *TURNS)
