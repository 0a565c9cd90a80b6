"""CTAs that wait for each other through global memory."""

from __future__ import annotations

import numpy as np
import pytest

from tilecat import sim

from .cases import CASES
from .inputs import arrays_of
from .runs import SEEDS, arguments, launches, text_of

# CTA k waits until the flag holds %wanted, then stores k + 1 into it.
TEXT = """
.version 8.6
.target sm_90a
.address_size 64
.visible .entry relay(.param .u64 flag)
.maxntid 32, 1, 1
{
  .reg .pred %p<2>;
  .reg .b32 %r<8>;
  .reg .b64 %d<2>;
  ld.param.u64 %d1, [flag];
  mov.u32 %r1, %ctaid.x;
  mov.u32 %r2, %nctaid.x;
  WANTED
AGAIN:
  ld.acquire.gpu.global.u32 %r4, [%d1];
  setp.ne.u32 %p1, %r4, %r3;
  @%p1 bra AGAIN;
  mov.u32 %r5, %tid.x;
  setp.ne.u32 %p1, %r5, 0;
  @%p1 bra END;
  add.u32 %r6, %r1, 1;
  st.release.gpu.global.u32 [%d1], %r6;
END:
  ret;
}
"""


def relay(wanted: str, ctas: int, start: int) -> tuple[sim.Result, int]:
    flag = np.array([start], np.uint32)
    text = TEXT.replace("WANTED", wanted)
    result = sim.run(text, grid=ctas, args=[sim.Pointer(flag)], smem_bytes=0)
    return result, int(flag[0])


def test_cta_waits_for_an_earlier_one():
    result, flag = relay("mov.u32 %r3, %r1;", 4, 0)
    assert not result.reports, str(result)
    assert flag == 4


def test_cta_waits_for_a_later_one():
    """CTA k wants what CTA k + 1 leaves, k + 2; the last one wants the start, CTAs + 1."""
    result, flag = relay("add.u32 %r3, %r1, 2;", 4, 5)
    assert not result.reports, str(result)
    assert flag == 1


@pytest.mark.parametrize("seed", SEEDS)
def test_polling_for_ever_is_a_deadlock(seed):
    case = next(case for case in CASES if case.name == "spin_lock")
    arrays = arrays_of(case)
    arrays["flag"][:] = 1  # nobody will ever unlock
    launch = launches(case.folder)[case.name]
    result = sim.run(text_of(case), grid=1, args=arguments(launch, arrays),
                     smem_bytes=launch["smem_bytes"], seed=seed)  # fmt: skip
    assert {report.kind for report in result.reports} == {"deadlock"}
