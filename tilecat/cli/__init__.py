"""The command line: `tilecat --help`."""

from . import doctor, machine
from .app import main

__all__ = ["doctor", "machine", "main"]
