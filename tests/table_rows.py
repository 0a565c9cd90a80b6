"""All rows of the table, and their cases."""

from __future__ import annotations

import convert_rows
import map_rows
import reduce_rows
from table import cases_of, quick_cases

CASES = cases_of(map_rows.ROWS + reduce_rows.ROWS + convert_rows.ROWS)
QUICK_CASES = quick_cases(CASES)
