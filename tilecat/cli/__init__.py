"""The command line: `tilecat --help`."""

from . import bench, demo, doctor, kernels, layout, machine, model, run, tune
from .app import main

__all__ = ["bench", "demo", "doctor", "kernels", "layout", "machine", "main",
           "model", "run", "tune"]  # fmt: skip
