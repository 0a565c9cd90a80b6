"""Layouts of tiles as linear maps: registers, shared memory, descriptors, bank conflicts."""

from .access import (
    Access,
    AccessPlan,
    LaneTerm,
    matrix_mode,
    plan_access,
    stmatrix_applies,
    vector_width,
)
from .banks import (
    bank_conflicts,
    ideal_wavefronts,
    ldmatrix_conflicts,
    stmatrix_conflicts,
)
from .descriptors import DescriptorFields, MatrixDescriptor, matrix_descriptor
from .linear import LinearMap
from .permute import column_order, permuted_indices
from .registers import (
    TENSOR_FRAGMENTS,
    Fragment,
    RegisterLayout,
    VectorLayout,
    fragment_name,
    fragment_of,
    tensor_fragment,
    tensor_shape,
)
from .shared import SharedLayout, SharedVectorLayout
from .shuffle import LaneFunction, LayoutChange, Round, layout_change

__all__ = [
    "TENSOR_FRAGMENTS",
    "Access",
    "AccessPlan",
    "DescriptorFields",
    "Fragment",
    "LaneFunction",
    "LaneTerm",
    "LayoutChange",
    "LinearMap",
    "MatrixDescriptor",
    "RegisterLayout",
    "Round",
    "SharedLayout",
    "SharedVectorLayout",
    "VectorLayout",
    "bank_conflicts",
    "column_order",
    "fragment_name",
    "fragment_of",
    "ideal_wavefronts",
    "layout_change",
    "ldmatrix_conflicts",
    "matrix_descriptor",
    "matrix_mode",
    "permuted_indices",
    "plan_access",
    "stmatrix_applies",
    "tensor_fragment",
    "tensor_shape",
    "stmatrix_conflicts",
    "vector_width",
]
