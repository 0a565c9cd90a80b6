"""The command line: `tilecat --help`."""

from . import demo, doctor, kernels, machine, run
from .app import main

__all__ = ["demo", "doctor", "kernels", "machine", "main", "run"]
