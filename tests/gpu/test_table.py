"""The table of ops on a GPU: the cases of the PTX machine."""

import pytest

pytestmark = pytest.mark.gpu

torch = pytest.importorskip("torch")
if not torch.cuda.is_available():
    pytest.skip("needs an NVIDIA GPU", allow_module_level=True)

from table import Case, arrays_of, check, run  # noqa: E402
from table_rows import CASES  # noqa: E402
from test_mma import launched  # noqa: E402


@pytest.mark.parametrize("case", CASES, ids=str)
def test_case_on_the_gpu_is_numpy(case: Case):
    arrays = arrays_of(case)
    check(case, run(case, arrays, launched), arrays)
