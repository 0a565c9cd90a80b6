"""Faults that a pipeline can have whatever it computes; the kernels' own are beside this file."""

from __future__ import annotations

from .edits import EVERY, Fault, number

_INIT = r"^( *mbarrier\.init\S* \[[^\]]*\], )(\d+)(;)$"
_EXPECT = r"( mbarrier\.arrive\.expect_tx\S* _, \[[^\]]*\], )(\d+)(;)$"
_LOAD = r"^.*cp\.async\.bulk\.tensor\.\dd\.shared::cluster.*\n"
_WRAP = r"^( *setp\.eq\.s32 %wrapped\d*, %next\d*, )(\d+)(;)$"
_START = r"^ *mov\.u32 (%ctaid_x\d*), %ctaid\.x;$"
_STEP = r"^( *add\.s32 (%i\d*), %i\d*, )%nctaid_x\d*;$"
_TRY = r"^( *mbarrier\.try_wait.*\n).*bra \$\w+;\n"
_MAP = r"(\[%map_\w+, \{)([%\w]+), ([%\w]+)"


def _halved(value: int) -> int:
    return value // 2


COUNTS = (
    Fault("arrive count", "full barrier waits for one arrival too many", _INIT,
          number(lambda n: n + 1), "all"),
    Fault("arrive count", "empty barrier waits for one consumer too few",
          r"^( *mbarrier\.init\S* \[[^\]]*\], )([23])(;)$", number(lambda n: n - 1), "all"),
    Fault("arrive count", "empty barrier waits for one consumer too many",
          r"^( *mbarrier\.init\S* \[[^\]]*\], )([23])(;)$", number(lambda n: n + 1), "all"),
    Fault("expected bytes", "half the bytes announced", _EXPECT, number(_halved), "producer"),
    Fault("expected bytes", "twice the bytes announced", _EXPECT, number(lambda n: 2 * n),
          "producer"),
    Fault("expected bytes", "16 bytes too many announced", _EXPECT, number(lambda n: n + 16),
          "producer"),
)  # fmt: skip

PARITY = (
    Fault("parity", "producer starts at parity 0", r"^( *mov\.b32 %\w+_phase\d*, )1;", r"\g<1>0;",
          "producer"),
    Fault("parity", "consumer starts at parity 1", r"^( *mov\.b32 %\w+_phase\d*, )0;", r"\g<1>1;",
          "consumer"),
    Fault("parity", "producer's phase never turns", r"(%turned\d*, %\w+, )1;", r"\g<1>0;",
          "producer"),
    Fault("parity", "consumer's phase never turns", r"(%turned\d*, %\w+, )1;", r"\g<1>0;",
          "consumer", EVERY),
    Fault("parity", "phase turns a stage early", r"(selp\.s32 %turned\d*, %turned\d*, %\w+, )%\w+;",
          r"\1%true;", "consumer"),
)  # fmt: skip

STAGES = (
    Fault("stage", "producer's ring has a stage too many", _WRAP, number(lambda n: n + 1),
          "producer"),
    Fault("stage", "consumer's ring has a stage too many", _WRAP, number(lambda n: n + 1),
          "consumer"),
    Fault("stage", "both rings have a stage too many", _WRAP, number(lambda n: n + 1), "", EVERY),
    Fault("stage", "producer's ring has a stage too few", _WRAP, number(lambda n: n - 1),
          "producer"),
    Fault("stage", "a load completes on the next stage's barrier",
          r"( \[%map_\w+, \{[^}]*\}\], \[%\w+\+)(\d+)(\];)$", number(lambda n: n + 8), "producer"),
    Fault("stage", "producer waits for a full stage",
          r"(mbarrier\.try_wait\S* %\w+, \[%\w+\+)(\d+)(\], )", number(lambda n: n - 16),
          "producer"),
    Fault("stage", "consumer waits for another barrier",
          r"(mbarrier\.try_wait\S* %\w+, \[%\w+\+)(\d+)(\], )", number(lambda n: n + 16),
          "consumer"),
    Fault("stage", "consumer gives back the next stage",
          r"( mbarrier\.arrive\.shared::cta\.b64 _, \[%\w+\+)(\d+)(\];)", number(lambda n: n + 8),
          "consumer"),
)  # fmt: skip

SCHEDULE = (
    Fault("schedule", "producer takes every task", _STEP, r"\g<1>1;", "producer"),
    Fault("schedule", "consumer takes every task", _STEP, r"\g<1>1;", "consumer"),
    Fault("schedule", "both take every task from their first", _STEP, r"\g<1>1;", "", EVERY),
    Fault("schedule", "every CTA repeats every task",
          rf"{_START}|{_STEP}", lambda m: f"mov.u32 {m[1]}, 0;" if m[1] else f"{m[2]}1;", "",
          EVERY),
    Fault("schedule", "every CTA starts with the first task", _START, r"mov.u32 \1, 0;", "", EVERY),
)  # fmt: skip

WAITS = (
    Fault("wait count", "consumer lets one wgmma group more run",
          r"(wgmma\.wait_group\.sync\.aligned )(\d+)(;)", number(lambda n: n + 1), "consumer"),
    Fault("wait count", "the last wgmma group is not waited for",
          r"(wgmma\.wait_group\.sync\.aligned )(0)(;)", number(lambda n: n + 1), "consumer", -1),
    Fault("wait count", "no stores are waited for at the end",
          r"(cp\.async\.bulk\.wait_group\.read )(0)(;)", number(lambda n: n + 4), "consumer", -1),
    Fault("loop", "producer's try_wait without its loop", _TRY, r"\1", "producer", EVERY),
    Fault("loop", "consumer's try_wait without its loop", _TRY, r"\1", "consumer", EVERY),
    Fault("loop", "producer's try_wait loops on success", r"@!(%\w+ bra \$wait)", r"@\1",
          "producer"),
)  # fmt: skip

STAGING = (
    Fault("wait count", "one store more may still read its panel",
          r"(cp\.async\.bulk\.wait_group\.read )(\d+)(;)", number(lambda n: n + 1), "consumer"),
    Fault("order", "stores are committed before they are issued",
          r"^( *@%lead cp\.async\.bulk\.tensor.*\n)( *@%lead cp\.async\.bulk\.commit_group;\n)",
          r"\2\1", "consumer", EVERY),
    Fault("order", "the async proxy's fence after the barrier",
          r"^( *fence\.proxy\.async.*\n)( *bar\.sync.*\n)", r"\2\1", "consumer", EVERY),
    Fault("order", "the async proxy's fence before the writes",
          r"^((?: *stmatrix.*\n| *cvt.*\n| *add.*\n)+)( *fence\.proxy\.async.*\n)", r"\2\1",
          "consumer", EVERY),
    Fault("predicate", "all threads store the panel", r"@%lead (cp\.async\.bulk\.tensor)", r"\1",
          "consumer"),
    Fault("predicate", "all threads but one commit",
          r"@%lead (cp\.async\.bulk\.commit_group)", r"@!%lead \1", "consumer", EVERY),
    Fault("coordinates", "coordinates of the store swapped", _MAP, r"\1\3, \2", "consumer"),
)  # fmt: skip

OUTPUT = (
    Fault("staging address", "one bit of the XOR missing",
          r"xor\.b32 (%lane_byte\d*), %lane_byte, %part\d*;", r"mov.b32 \1, \1;", "consumer"),
    Fault("staging address", "XOR of the second column replaced by a sum",
          r"xor\.b32 (%lane_byte\d+, %lane_byte, 32;)", r"add.u32 \1", "consumer"),
    Fault("staging address", "XOR by half the column", r"(xor\.b32 %lane_byte\d+, %lane_byte, )32;",
          r"\g<1>16;", "consumer"),
    Fault("staging address", "all consumers stage in one place",
          r"^( *mad\.lo\.u32 %at\d+, %\w+, )8192(, %base;\n(?: *\.loc.*\n)*"
          r" *(?:@%lead cp\.async\.bulk\.wait_group|bar\.sync))", r"\g<1>0\2", "consumer"),
    Fault("conversion", "halves swapped", r"(cvt\.rn\.bf16x2\.f32 %packed\d*), (%\w+), (%\w+);",
          r"\1, \3, \2;", "consumer", EVERY),
    Fault("conversion", "one pair of halves swapped",
          r"(cvt\.rn\.bf16x2\.f32 %packed3), (%\w+), (%\w+);", r"\1, \3, \2;", "consumer"),
    Fault("conversion", "stmatrix transposes", r"stmatrix\.sync\.aligned\.m8n8\.x4",
          r"\g<0>.trans", "consumer"),
    Fault("named barrier", "a consumer's barrier counts both consumers",
          r"(bar\.sync %barrier\d*, )128;", r"\g<1>256;", "consumer"),
    Fault("named barrier", "a consumer's barrier counts half of it",
          r"(bar\.sync %barrier\d*, )128;", r"\g<1>64;", "consumer"),
    Fault("named barrier", "all consumers use one barrier",
          r"(add\.s32 %barrier\d*), %\w+, 1;", r"\1, 0, 1;", "consumer"),
)  # fmt: skip

ROLES = (
    Fault("predicate", "all threads initialise the barriers", r"^ *@%other\d* bra \$init_end.*\n",
          "", "all"),
    Fault("predicate", "all threads of the consumer give the stage back",
          r"@%\w+ (mbarrier\.arrive\.shared)", r"\1", "consumer"),
    Fault("order", "a stage is given back before its wgmma are waited for",
          r"^( *wgmma\.wait_group.*\n)((?:.*\n)*?)( *@%\w+ mbarrier\.arrive\.shared.*\n)",
          r"\2\3\1", "consumer"),
    Fault("order", "bytes announced after the load",
          rf"^(.*mbarrier\.arrive\.expect_tx.*\n)((?:.*\n)*?)({_LOAD[1:]})", r"\2\3\1",
          "producer"),
    Fault("role", "producer goes on as a consumer", r"^ *ret;\n", "", "producer"),
    Fault("role", "one warpgroup too many produces",
          r"(setp\.lt\.u32 %outside, %warpgroup, )(\d)(;)", number(lambda n: n - 1), "producer"),
    Fault("role", "the producer takes more registers than it gives",
          r"(setmaxnreg\.dec\.sync\.aligned\.u32 )\d+;", r"\g<1>160;", "producer"),
    Fault("coordinates", "coordinates of the first load swapped", _MAP, r"\1\3, \2", "producer"),
)  # fmt: skip

LOADS = (
    Fault("predicate", "all threads of the producer load", r"^ *@%other\d* bra \$one_thread.*\n",
          "", "producer"),
)  # fmt: skip

COMMON = (*COUNTS, *PARITY, *STAGES, *SCHEDULE, *WAITS, *OUTPUT, *ROLES)
