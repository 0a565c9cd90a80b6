"""All operations, each declared once: fields, scopes, result types, effects and PTX."""

from __future__ import annotations

from ..ir import Op
from .atomics import AtomicGlobal, AtomicShared, AtomicVector
from .cluster import (
    ClusterBarrier,
    CopyToPeer,
    GridDependency,
    LoadPeer,
    PeerShared,
    SendToPeer,
    StorePeer,
)
from .conditions import CompareElements, Indices, SelectElements
from .control import Elected, OneThread, Range, RoleSection, When, WhileLess
from .convert import Cast
from .copies import CopyArrive, CopyAsync, CopyByThreads, CopyElement, CopyGroup
from .cta import ReduceCta
from .debug import DeviceAssert, Print
from .elementwise import AllocRegisters, Fill, Map, MapScalar, Spread
from .features import TaylorFeatures, TaylorGradient
from .global_memory import LoadGlobal, StoreGlobal
from .global_scalars import LoadScalar, StoreScalar
from .inline import Inline
from .launch_control import CancelLaunch, TakeAnswer
from .masks import Mask
from .memory import AllocScratch, AllocShared, LoadShared, StoreShared, ViewShared
from .minifloat import ConvertCodes, PackCodes
from .mma import Mma, MmaWait
from .mma_tensor import Commit, ElectIssuer, TensorMma
from .mma_warp import WarpMma
from .random import RandomBits
from .reduce import Reduce, ReduceVector, Total
from .relayout import ChangeLayout
from .scalar import (
    Binary,
    Compare,
    ConvertScalar,
    Extent,
    GetVar,
    NewVar,
    Not,
    ScalarArgument,
    Select,
    SetVar,
    SpecialRegister,
    WarpgroupIndex,
    WarpIndex,
)
from .scan import Scan
from .shared_vectors import LoadElement, LoadVector, StoreVector
from .sync import (
    AllocBarriers,
    Arrive,
    ArriveExpect,
    Fence,
    FenceAsync,
    InitBarriers,
    NamedBarrier,
    TestBarrier,
    WaitBarrier,
    WarpSync,
)
from .tensor import (
    AllocTensor,
    AllocTensorMemory,
    FreeTensorMemory,
    TensorFence,
    ViewTensor,
)
from .tensor_moves import LoadReduced, LoadTensor, StoreTensor
from .tensor_scales import CopyScales
from .tma import BulkLoad, BulkStore, BulkWait, TmaLoad, TmaPrefetch, TmaStore
from .triangular import TriangularInverse
from .turns import LastOf, Turn
from .vectors import ChangeVector
from .views import ViewRegisters

ALL_OPS: tuple[type[Op], ...] = (
    SpecialRegister, WarpgroupIndex, WarpIndex, Extent, ScalarArgument, Binary, MapScalar, Compare,
    Not, Select, ConvertScalar, NewVar, GetVar, SetVar, Range, When, OneThread, Elected,
    RoleSection, WhileLess, CancelLaunch, TakeAnswer,
    AllocBarriers, InitBarriers, Arrive, ArriveExpect, WaitBarrier, TestBarrier, NamedBarrier,
    FenceAsync, Fence, WarpSync, ClusterBarrier, GridDependency,
    AllocShared, AllocScratch, ViewShared, StoreShared, LoadShared,
    LoadVector, LoadElement, StoreVector, PeerShared, CopyToPeer, SendToPeer, StorePeer, LoadPeer,
    LoadGlobal, StoreGlobal, LoadScalar, StoreScalar,
    TmaLoad, TmaStore, TmaPrefetch, BulkWait, BulkLoad, BulkStore,
    CopyByThreads, CopyAsync, CopyElement, CopyGroup, CopyArrive,
    AtomicGlobal, AtomicShared, AtomicVector,
    Mma, WarpMma, MmaWait, ViewRegisters,
    AllocTensor, AllocTensorMemory, FreeTensorMemory, ViewTensor, LoadTensor, StoreTensor,
    LoadReduced, TensorFence, TensorMma, CopyScales, Commit, ElectIssuer,
    ChangeLayout, AllocRegisters, Map, Fill, Spread, Mask, CompareElements, SelectElements, Indices,
    ChangeVector, Scan, RandomBits, ConvertCodes, PackCodes,
    TriangularInverse, TaylorFeatures, TaylorGradient,
    Reduce, ReduceVector, ReduceCta, Total, Cast, Inline, Print, DeviceAssert, Turn, LastOf,
)  # fmt: skip

__all__ = [op.__name__ for op in ALL_OPS] + ["ALL_OPS"]
