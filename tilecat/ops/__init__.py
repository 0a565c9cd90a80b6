"""All operations, each declared once: fields, scopes, result types, effects and PTX."""

from __future__ import annotations

from ..ir import Op
from .control import OneThread, Range, RoleSection, When
from .convert import Cast
from .elementwise import AllocRegisters, Fill, Map, MaskTail
from .global_memory import LoadGlobal, StoreGlobal
from .inline import Inline
from .memory import AllocScratch, AllocShared, LoadShared, StoreShared, ViewShared
from .mma import Mma, MmaWait
from .mma_warp import WarpMma
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
    Unary,
    WarpgroupIndex,
    WarpIndex,
)
from .sync import (
    AllocBarriers,
    Arrive,
    ArriveExpect,
    FenceAsync,
    InitBarriers,
    NamedBarrier,
    WaitBarrier,
    WarpSync,
)
from .tma import BulkWait, CopyByThreads, TmaLoad, TmaStore
from .views import ViewRegisters

ALL_OPS: tuple[type[Op], ...] = (
    SpecialRegister, WarpgroupIndex, WarpIndex, Extent, ScalarArgument, Binary, Unary, Compare, Not,
    Select, ConvertScalar, NewVar, GetVar, SetVar, Range, When, OneThread, RoleSection,
    AllocBarriers, InitBarriers, Arrive, ArriveExpect, WaitBarrier, NamedBarrier, FenceAsync,
    WarpSync, AllocShared, AllocScratch, ViewShared, StoreShared, LoadShared, LoadGlobal,
    StoreGlobal, TmaLoad, TmaStore, BulkWait, CopyByThreads, Mma, WarpMma, MmaWait, ViewRegisters,
    ChangeLayout, AllocRegisters, Map, Fill, MaskTail, Reduce, ReduceVector, Total, Cast, Inline,
)  # fmt: skip

__all__ = [op.__name__ for op in ALL_OPS] + ["ALL_OPS"]
