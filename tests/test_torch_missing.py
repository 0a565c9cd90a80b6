"""`import tilecat.torch` where torch is not."""

from __future__ import annotations

import subprocess
import sys

CODE = """
import sys
sys.modules["torch"] = None
import tilecat
try:
    import tilecat.torch
except ModuleNotFoundError as error:
    print(error)
"""


def test_the_error_says_what_to_install():
    out = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, check=True)
    assert out.stdout.strip().endswith("pip install 'tilecat[torch]'")
