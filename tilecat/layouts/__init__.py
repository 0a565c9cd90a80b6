"""Layouts of tiles as linear maps: registers, shared memory, descriptors, bank conflicts."""

from tilecat.layouts.banks import (
    bank_conflicts,
    ideal_wavefronts,
    ldmatrix_conflicts,
    stmatrix_conflicts,
)
from tilecat.layouts.descriptors import DescriptorFields, MatrixDescriptor, matrix_descriptor
from tilecat.layouts.linear import LinearMap
from tilecat.layouts.registers import RegisterLayout, VectorLayout
from tilecat.layouts.shared import SharedLayout

__all__ = [
    "DescriptorFields",
    "LinearMap",
    "MatrixDescriptor",
    "RegisterLayout",
    "SharedLayout",
    "VectorLayout",
    "bank_conflicts",
    "ideal_wavefronts",
    "ldmatrix_conflicts",
    "matrix_descriptor",
    "stmatrix_conflicts",
]
