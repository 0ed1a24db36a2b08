"""The context in which stages build HIR."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from xdsl.dialects.builtin import (
    ModuleOp,
    StringAttr,
    TensorType,
    f32,
)
from xdsl.dialects.func import FuncOp, ReturnOp
from xdsl.ir import Attribute, Block, Operation, Region, SSAValue
from xdsl.utils.exceptions import VerifyException

from rlx.dialects import hir
from rlx.dialects.common import DimDef, dims_of, spell, tensor
from rlx.dialects.levels import stage_of
from rlx.dialects.ops import StateRole
from rlx.errors import RlxError
from rlx.flow.declare import close, named, rank, symbol_of, weight_type
from rlx.flow.profile import CompileProfile
from rlx.flow.source import LAYER, WeightSource
from rlx.flow.state import FlowState, FlowValue, HirNodeId, Shape

PAST = "past"
"""The dimension that counts the positions before this step."""
KEYS = "keys"
"""The dimension that counts the positions that attention sees: `past` and this step's rows."""
ORIGIN = "origin"
"""The dimension that is 0, for a program whose first row is at position 0."""


class FlowStage(Protocol):
    """A piece of a model: builds HIR that makes a value of a value."""

    def emit(self, ctx: FlowCtx, x: FlowValue) -> FlowValue: ...


@dataclass
class _Scope:
    """The function that is being built; a repeated one has a layer that stands for all."""

    block: Block = field(default_factory=Block)
    function: str = "main"
    layer: int | None = None


@dataclass(frozen=True)
class Outlined:
    """A function made of a stage: what to pass after the carried values, and its families' keys."""

    function: str
    captured: list[SSAValue]
    keys: list[str]


@dataclass
class FlowCtx:
    """
    Builds one program. `params` receives the data of parameters (f32, by name); `dims` holds the
    dimensions that the program declares.

    Values live in the function being built: what `FlowState` caches is that function's own.
    """

    module: ModuleOp
    params: dict[str, NDArray[np.float32]]
    weights: WeightSource
    profile: CompileProfile = field(default_factory=CompileProfile)
    state: FlowState = field(default_factory=FlowState)
    dims: dict[str, DimDef] = field(default_factory=dict[str, DimDef])
    layer: int | None = field(default=None, init=False)
    """The layer that is built in line, by `Unroll`; a repeated layer has none of its own."""
    _main: _Scope = field(default_factory=_Scope, init=False)
    _scope: _Scope = field(init=False)
    _symbols: dict[str, Operation] = field(default_factory=dict[str, Operation], init=False)
    _declared: dict[tuple[str, str], hir.WeightOp] = field(
        default_factory=dict[tuple[str, str], hir.WeightOp], init=False
    )

    def __post_init__(self) -> None:
        self._scope = self._main

    @classmethod
    def define(
        cls, name: str, weights: WeightSource, profile: CompileProfile | None = None
    ) -> FlowCtx:
        """Return a context for a new, empty module."""
        module = ModuleOp([], sym_name=StringAttr(name))
        return cls(module, {}, weights, profile or CompileProfile())

    def hir(self) -> ModuleOp:
        """Return the module. Raises RlxError once it was lowered from HIR."""
        stage = stage_of(self.module)
        if stage != "hir":
            raise RlxError(f"the flow API builds HIR, but the module is {stage} already")
        return self.module

    def node_shape(self, id: HirNodeId) -> Shape:
        """Return a node's shape. Raises RlxError once the module was lowered from HIR."""
        self.hir()
        return dims_of(id.type)

    def wrap(self, id: HirNodeId, shape: Shape) -> FlowValue:
        """Return a node with its shape. Raises RlxError if it isn't the shape of the node."""
        shape = tuple(shape)
        if dims_of(id.type) != shape:
            raise RlxError(f"expected the shape of the value {spell(id.type)}, got {list(shape)}")
        return FlowValue(id, shape)

    def insert(self, op: Operation, hint: str | None = None) -> FlowValue:
        """
        Append an operation to the function; return its first result, named `hint` in print.

        Raises VerifyException, which `apply` makes an RlxError, for one that doesn't verify.
        """
        self.hir()
        op.verify_()
        self._scope.block.add_op(op)
        result = op.results[0]
        result.name_hint = hint
        return FlowValue(result, dims_of(result.type))

    def apply(self, stage: FlowStage, x: FlowValue) -> FlowValue:
        """Emit a stage. Raises RlxError, naming the stage, where shapes don't fit."""
        try:
            return stage.emit(self, x)
        except VerifyException as error:
            raise RlxError(f"{stage}: {error}") from error

    @contextmanager
    def in_line(self, layer: int) -> Generator[None]:
        """Build a layer as part of the program: `{layer}` in the keys of weights is its number."""
        if self.layer is not None or self._scope.layer is not None:
            raise RlxError("expected no layers within a layer")
        self.layer = layer
        try:
            yield
        finally:
            self.layer = None

    @property
    def repeated(self) -> bool:
        """Return whether what is built is a function that stands for many layers."""
        return self._scope.layer is not None

    def origin(self) -> str:
        """Return the name of the dimension that is 0, which is declared when first asked for."""
        zero = DimDef(ORIGIN, 0, 0)
        if self.dims.setdefault(ORIGIN, zero) != zero:
            raise RlxError(f"expected the dimension {ORIGIN!r} to be 0: {self.dims[ORIGIN]}")
        return ORIGIN

    def input(self, name: str, shape: Shape, element: Attribute = f32) -> FlowValue:
        """Add an argument to the program."""
        self.hir()
        if name in self.state.inputs:
            raise RlxError(f"expected one input {name!r}, it is declared twice")
        block = self._main.block
        arg = block.insert_arg(tensor(shape, element), len(block.args))
        arg.name_hint = name
        value = FlowValue(arg, tuple(shape))
        self.state.inputs[name] = (arg, value.shape)
        return value

    def find_input(self, name: str) -> FlowValue:
        """Return an argument of the program. Raises RlxError where there is none of this name."""
        if name not in self.state.inputs:
            known = ", ".join(self.state.inputs) or "none"
            raise RlxError(f"expected an input {name!r}, the inputs are: {known}")
        return FlowValue(*self.state.inputs[name])

    def load_weight(self, key: str) -> FlowValue:
        """
        Return a weight in its file's own type, which may be quantised.

        A key with `{layer}` is a family with a member for each layer, for use in a stage that is
        repeated. Raises RlxError for a missing key, an unknown format, a family outside of
        layers, and a key that `load_param` has made f32.
        """
        self.hir()
        key = self._in_line(key)
        loaded = self.state.loaded_weights.get(key)
        if loaded is not None:
            return FlowValue(loaded, dims_of(loaded.type))
        name = self._member(key)
        type_ = weight_type(name, self.weights.info(name))
        if key in self.params:
            raise RlxError(f"weight {key!r} was loaded as a parameter: use its value, not both")
        declared = self._declare_weight(key, key, type_)
        value = self._load(declared)
        self.state.loaded_weights[key] = value.id
        return value

    def load_param(self, key: str, transpose: bool = False) -> HirNodeId:
        """
        Return a weight as an f32 parameter named `key`, whose data go to `params[key]`.

        The source is asked once for each (key, transpose). Where the name is taken, by the other
        orientation or by `load_weight`, the parameter is `key.t` or `key.f32`. Raises what the
        source raises, and RlxError for a key with `{layer}`, unless the layer is built in line.
        """
        self.hir()
        key = self._in_line(key)
        cache_key = f"{key}\0t" if transpose else key
        if cache_key in self.state.loaded_params:
            return self.state.loaded_params[cache_key]
        if LAYER in key:
            raise RlxError(f"load_param: {key!r} is one weight for each layer: use load_weight")
        declared = self._declared.get((cache_key, "param"))
        if declared is None:
            data, shape = self.weights.take(key, transpose)
            taken = key in self.params or (key, "main") in self._declared
            name = f"{key}.{'t' if transpose else 'f32'}" if taken else key
            declared = self._declare_param(cache_key, name, data, shape)
        self.state.loaded_params[cache_key] = self._load(declared).id
        return self.state.loaded_params[cache_key]

    def synth_param(
        self, name: str, data: NDArray[np.float32], shape: tuple[int, ...]
    ) -> HirNodeId:
        """
        Return an f32 parameter of data that no source has, `shape` row-major.

        Raises RlxError when the data don't fill the shape or the name stands for other data.
        """
        self.hir()
        data = np.ascontiguousarray(data, np.float32)
        if data.size != int(np.prod(shape)):
            raise RlxError(f"parameter {name!r}: expected data of {shape}, got {data.shape}")
        declared = self._declared.get((name, "param"))
        if declared is None and name not in self.params and (name, "main") not in self._declared:
            declared = self._declare_param(name, name, data, shape)
        elif declared is None or not np.array_equal(self.params[name], data.reshape(shape)):
            raise RlxError(f"parameter {name!r} is declared already, with other data")
        return self._load(declared).id

    def synth_zeros(self, name: str, length: int) -> HirNodeId:
        """Return an f32 parameter `[length]` of zeros."""
        return self.synth_param(name, np.zeros(length, np.float32), (length,))

    def synth_ones(self, name: str, length: int) -> HirNodeId:
        """Return an f32 parameter `[length]` of ones."""
        return self.synth_param(name, np.ones(length, np.float32), (length,))

    def stream(self, name: str) -> FlowValue:
        """Return a stream. Raises RlxError where none of this name was stored."""
        if name not in self.state.streams:
            known = ", ".join(self.state.streams) or "none"
            raise RlxError(f"expected a stream {name!r}, the streams are: {known}")
        return self.state.streams[name]

    def append(
        self,
        state: str,
        role: StateRole,
        capacity: int,
        head_dim: int,
        x: FlowValue,
        kept: Attribute = f32,
        places: HirNodeId | None = None,
    ) -> FlowValue:
        """
        Write `[rows, width]` to a state at position `past`; return its `[keys, width]` so far.

        With `places` each row goes to a sequence and position of its own: see `mir.append`.

        Declares the state, with a member of `capacity` positions of `kept` elements for each layer,
        when it is new. Raises RlxError if it was declared otherwise.
        """
        self.hir()
        width = x.shape[1]
        new = hir.StateOp(state, role, head_dim, tensor([capacity, width], kept))
        old = self._symbols.get(state)
        if old is None:
            self._declare(state, new)
        elif not old.is_structurally_equivalent(new):
            raise RlxError(f"state @{state} is declared as '{old}', not as '{new}'")
        start, filled = (PAST, KEYS) if places is None else (self.origin(), capacity)
        view = tensor([filled, width], kept)
        return self.insert(hir.AppendOp(x.id, state, start, view, places), state)

    def outline(
        self, name: str, layer: int, stage: FlowStage, x: FlowValue, streams: Sequence[str] = ()
    ) -> Outlined:
        """
        Make a private function of a stage: of `x`, the streams, and outer values that it uses.

        It gives the next `x` and streams; `layer` stands for the layers that the function serves.
        Raises RlxError if the stage gives other types than it takes, or repeats layers itself.
        """
        if self.repeated or self.layer is not None:
            raise RlxError(f"{stage}: expected no repeat of layers within a layer")
        name = self._free(name)
        outer_scope, outer_state = self._scope, self.state
        outer = [x, *(outer_state.streams[s] for s in streams)]
        block = Block(arg_types=[value.id.type for value in outer])
        self._scope, self.state = _Scope(block, name, layer), outer_state.inner()
        try:
            results = self._layer(stage, outer, streams)
            keys = [key for key in self.state.loaded_weights if LAYER in key]
        finally:
            self._scope, self.state = outer_scope, outer_state
        block.add_op(ReturnOp(*results))
        captured = close(block)
        types = [arg.type for arg in block.args]
        signature = (types, [result.type for result in results])
        function = FuncOp(name, signature, Region(block), visibility="private")
        self._declare(name, function)
        return Outlined(name, captured, keys)

    def _layer(
        self, stage: FlowStage, outer: Sequence[FlowValue], streams: Sequence[str]
    ) -> list[SSAValue]:
        """Emit a layer in its function, whose arguments are x and streams; return the next ones."""
        args = self._scope.block.args
        inner = [FlowValue(arg, value.shape) for arg, value in zip(args, outer, strict=True)]
        for hint, value in zip(("x", *streams), inner, strict=True):
            value.id.name_hint = hint
        self.state.streams.update(zip(streams, inner[1:], strict=True))
        before = dict(self.state.streams)
        y = self.apply(stage, inner[0])
        after = self.state.streams
        lost = next((s for s in before if s not in streams and after[s] != before[s]), None)
        if lost is not None:
            raise RlxError(f"{stage}: changes the stream {lost!r}: name it in Repeat's streams")
        results = [y.id, *(after[s].id for s in streams)]
        for value, result in zip(outer, results, strict=True):
            if result.type != value.id.type:
                raise RlxError(
                    f"{stage}: expected a layer to give {spell(value.id.type)}, as it takes, "
                    f"got {spell(result.type)}"
                )
        return results

    def finish(self, outputs: Mapping[str, HirNodeId]) -> None:
        """Complete the program: @main returns `outputs` in their order."""
        block = self._main.block
        block.add_op(ReturnOp(*outputs.values()))
        types = [arg.type for arg in block.args], [value.type for value in outputs.values()]
        arg_attrs, res_attrs = named(self.state.inputs), named(outputs)
        main = FuncOp("main", types, Region(block), arg_attrs=arg_attrs, res_attrs=res_attrs)
        self._declare("main", main)

    def _in_line(self, key: str) -> str:
        """Return a key with the number of the layer that is built in line, if one is."""
        return key if self.layer is None else key.replace(LAYER, str(self.layer))

    def _member(self, key: str) -> str:
        """Return a key with the number of the layer that stands for all."""
        if LAYER not in key:
            return key
        if self._scope.layer is None:
            raise RlxError(
                f"weight {key!r} is one for each layer: load it in a stage that is repeated"
            )
        return key.replace(LAYER, str(self._scope.layer))

    def _declare_weight(self, id: str, key: str, type_: TensorType[Attribute]) -> hir.WeightOp:
        # Families belong to a function, because a function's layers have formats of their own.
        owner = self._scope.function if LAYER in key else "main"
        if (id, owner) not in self._declared:
            self._declared[id, owner] = self._new_weight(key, type_)
        return self._declared[id, owner]

    def _declare_param(
        self, id: str, name: str, data: NDArray[np.float32], shape: tuple[int, ...]
    ) -> hir.WeightOp:
        self.params[name] = data.reshape(shape)
        self._declared[id, "param"] = self._new_weight(name, tensor(shape))
        return self._declared[id, "param"]

    def _new_weight(self, key: str, type_: TensorType[Attribute]) -> hir.WeightOp:
        symbol = self._free(symbol_of(key))
        op = hir.WeightOp(symbol, key, type_)
        op.verify_()
        self._declare(symbol, op)
        return op

    def _load(self, weight: hir.WeightOp) -> FlowValue:
        symbol = weight.sym_name.data
        return self.insert(hir.LoadWeightOp(symbol, weight.type), symbol)

    def _free(self, symbol: str) -> str:
        """Return a symbol that is not taken: the given one, or one with a number behind it."""
        if symbol != "main" and symbol not in self._symbols:
            return symbol
        numbers = range(1, len(self._symbols) + 2)
        return next(s for n in numbers if (s := f"{symbol}_{n}") not in self._symbols)

    def _declare(self, symbol: str, op: Operation) -> None:
        """Put a symbol in its place in the module: weights, states, functions, @main."""
        self._symbols[symbol] = op
        block = self.hir().body.block
        after = next((o for o in block.ops if rank(o) > rank(op)), None)
        if after is None:
            block.add_op(op)
        else:
            block.insert_op_before(op, after)
