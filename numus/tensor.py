"""Tensor: a handle on a graph node.

Nodes are immutable; in-place operators and assignments re-bind the handle. Operations on tensors
(arithmetic, indexing, gradients) are defined in `functions/` and `transforms/`, which add their
methods to this class when imported.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from numus import aliases
from numus import dtypes as dt
from numus.dispatch.call_cache import GUARD_FAILED
from numus.dispatch.node_ops import FastCall, new_node
from numus.dtypes import DType
from numus.errors import DTypeError, GradientError, ShapeError
from numus.evaluation.evaluate import check_known, elements, evaluate, from_host
from numus.evaluation.host_reads import check_readable
from numus.graph import Node, View, active_hooks, current_trace, mode, now
from numus.primitives import elementwise as ew
from numus.primitives.custom import graft
from numus.primitives.source import VALUE, constant
from numus.primitives.structure import copy
from numus.primitives.view_updates import Path
from numus.primitives.view_updates import detached as detached
from numus.primitives.views import identity, reshape
from numus.runtime.devices import Device, default
from numus.shapes import Shape, is_row_major, size_of

Function = TypeVar("Function", bound=Callable[..., Any])

_ref = weakref.ref
_DETACHED: Path = ((detached,),)


if TYPE_CHECKING:
    # The methods added elsewhere, for type checkers and editors.
    from numus._methods import Methods
    from numus.runtime.pycall.builder import BytecodeBuilder
else:
    Methods = object


class GradSlot:
    """A gradient of reverse mode, shared by a tensor and its node."""

    __slots__ = ("_grad", "hooks", "later_hooks", "leaf", "owner", "retains", "serial")

    def __init__(self, leaf: bool, owner: Tensor) -> None:
        self.leaf = leaf
        self.retains = leaf  # backward() stores a gradient here
        self._grad: Any = None
        self.serial = now()
        self.owner = weakref.ref(owner)  # the argument of hooks
        self.hooks: dict[int, Any] = {}  # called with a gradient before it is added to `grad`
        self.later_hooks: dict[int, Any] = {}  # called with the tensor afterwards

    @property
    def grad(self) -> Any:
        trace = current_trace()
        if trace is not None:
            trace.reads_grad(self)
        return self._grad

    @grad.setter
    def grad(self, given: Any) -> None:
        if active_hooks:
            if mode.effects is not None:
                mode.effects.writes_grad(self)
            if mode.trace is not None:
                mode.trace.writes_grad(self)
        self._grad = given


class Tensor(Methods):
    """An n-dimensional array: lazy, differentiable, on any device."""

    __slots__ = ("__weakref__", "_alias", "_node")

    # NumPy defers to numus in mixed arithmetic
    __array_priority__ = 100.0

    _node: Node
    _alias: aliases.Alias | None  # its relation to tensors that see writes to it

    def __init__(self, node: Node) -> None:
        if node.__class__ is not Node:
            raise TypeError("make tensors with nm.asarray, nm.zeros …; Tensor() wraps a graph node")
        self._node = node
        self._alias = None
        if node.handle is None:
            node.handle = _ref(self)
        else:
            self._bind(node)

    def _bind(self, node: Node) -> None:
        """Bind this handle to a node."""
        if active_hooks:
            if mode.effects is not None:
                mode.effects.binds(self, node)
            if mode.trace is not None:
                mode.trace.binds(self, node)
        self._node = node
        known = node.handle or ()
        known = (known,) if known.__class__ is _ref else known
        alive = [h for h in known if h() is not None]
        node.handle = (*alive, _ref(self)) if alive else _ref(self)

    # -- properties -------------------------------------------------------------------------------

    @property
    def shape(self) -> Shape:
        """The extents of its axes."""
        return self._node.shape

    @property
    def dtype(self) -> DType:
        """The type of its elements."""
        return self._node.dtype

    @property
    def device(self) -> Device:
        """The device of its storage."""
        return self._node.device or default.device

    @property
    def ndim(self) -> int:
        """The number of axes."""
        return len(self._node.shape)

    @property
    def size(self) -> int:
        """The number of elements."""
        return size_of(self._node.shape)

    @property
    def itemsize(self) -> int:
        """Bytes per element."""
        return self._node.dtype.itemsize

    @property
    def nbytes(self) -> int:
        """Bytes of all elements."""
        return self.size * self._node.dtype.itemsize

    # -- layout -----------------------------------------------------------------------------------

    def _view(self) -> View:
        node = self._node
        if node.view is None:
            check_known(node, "layout")
            evaluate((node,))
            assert node.view is not None
        return node.view

    @property
    def strides(self) -> Shape:
        """The stride of each axis, in elements. Evaluates the tensor."""
        return self._view().strides

    @property
    def offset(self) -> int:
        """The offset of its first element in its storage, in elements. Evaluates the tensor."""
        return self._view().offset

    def is_contiguous(self) -> bool:
        """True if its layout is row-major and dense. Evaluates the tensor."""
        return is_row_major(self.shape, self._view().strides)

    # -- values on the host -----------------------------------------------------------------------

    def numpy(self) -> np.ndarray[Any, Any]:
        """A NumPy copy of the elements.

        An error inside functions that `nm.grad` and its kin differentiate, where the array would
        lose the derivative: use x.detach().numpy() there.
        """
        check_readable(self._node, "numpy()")
        check_known(self._node, "numpy()")
        return np.array(elements(self._node))

    def item(self) -> Any:
        """The Python scalar of a tensor with one element.

        An error inside functions that `nm.grad` and its kin differentiate, where the number would
        lose the derivative: use x.detach().item() there.
        """
        check_readable(self._node, "item()")
        return self._item()

    def _item(self) -> Any:
        """`item()` for uses that have no derivative: truth values, integers, text."""
        node = self._node
        if size_of(node.shape) != 1:
            raise ValueError(f"item(): needs a tensor of one element, not of shape {self.shape}")
        check_known(node, "item()")
        array = elements(node)
        return float(array.item()) if node.dtype.kind == "float" else array.reshape(-1)[0].item()

    def tolist(self) -> Any:
        """Nested Python lists of Python scalars."""
        array = self.numpy()
        return (array.astype(np.float32) if self._node.dtype.is_low_precision else array).tolist()

    # -- gradients --------------------------------------------------------------------------------

    @property
    def requires_grad(self) -> bool:
        """True if gradients flow to (or through) this tensor. Set it on leaf tensors."""
        return self._node.tracked

    @requires_grad.setter
    def requires_grad(self, wanted: bool) -> None:
        if wanted == self._node.tracked:
            return
        if wanted:
            if not self._node.dtype.is_inexact:
                raise GradientError(
                    "only floating-point and complex tensors have gradients, not "
                    f"{self._node.dtype.name}"
                )
            self._bind(leaf_of(self._node, GradSlot(leaf=True, owner=self)))
        elif self.is_leaf:
            self._bind(detached(self._node))
        else:
            raise GradientError(
                "requires_grad of a computed tensor cannot be cleared; use detach()"
            )

    @property
    def is_leaf(self) -> bool:
        """True if it is not the result of a tracked operation."""
        slot = self._node.grad_slot
        return not self._node.tracked or (slot is not None and slot.leaf)

    @property
    def grad(self) -> Tensor | None:
        """The gradient accumulated by `backward()`."""
        slot = self._node.grad_slot
        return None if slot is None else slot.grad

    @grad.setter
    def grad(self, given: Tensor | None) -> None:
        slot = self._node.grad_slot
        if slot is None:
            if given is None:
                return
            raise GradientError("this tensor does not keep a gradient; set requires_grad first")
        own = self._node
        if given is not None and (given.shape != own.shape or given._node.dtype is not own.dtype):
            raise GradientError(
                f"the gradient of a {self._node.type_text} tensor must have its dtype and shape, "
                f"not {given._node.type_text}"
            )
        slot.grad = given

    def detach(self) -> Tensor:
        """A view without history: each sees what is written to the other."""
        return registered(self, detached(self._node), _DETACHED)

    def rebind(self, node: Node, op: str) -> Tensor:
        """Change the elements to those of another node: the basis of in-place operators. Tensors
        that this one is a view of, and views of it, see the change."""
        old = self._node
        if old.shape != node.shape:
            shapes = f"the result of shape {node.shape} must have the shape {old.shape}"
            raise ValueError(f"{op}: {shapes}")
        if old.dtype is not node.dtype:
            raise TypeError(
                f"{op}: the result of {node.dtype.name} must have dtype {old.dtype.name}; "
                "write x = x op y instead"
            )
        if self._alias is not None and node is not old and aliases.is_shared(self):
            aliases.write(self, node, op)
        else:
            self.rebind_alone(node, op)
        return self

    def rebind_alone(self, node: Node, op: str) -> None:
        """Bind this handle, and no alias of it, to another node."""
        old = self._node
        if node.device is None and old.device is not None:  # a constant: it stays on the device
            node = copy(node)
            node.device = old.device
        slot = old.grad_slot
        if slot is not None and slot.leaf:
            if node.tracked:
                raise GradientError(
                    f"{op}: a leaf tensor that requires gradients cannot be changed in place while "
                    "they are recorded; wrap the update in nm.no_grad()"
                )
            node = leaf_of(node, slot)
        elif old.tracked and not mode.grad:
            # an untracked change: the value is new, its derivative that of the old one
            node = graft(node, old)
            node.tracked = True
        elif old.tracked and not node.tracked:
            # overwritten as a whole: it still requires gradients, of which none arrive
            node = copy(node)
            node.tracked = True
        if node is not old:  # x += 0 may change nothing
            self._bind(node)


def new_tensor(code: BytecodeBuilder, view: int, shape: Shape, dtype: DType, device: Device) -> int:
    """`Tensor(value(view, shape, dtype, device))` in bytecode."""
    members = {"prim": VALUE, "inputs": (), "params": None, "shape": shape, "dtype": dtype}
    members |= {"device": device, "tracked": False, "depth": 0, "retained_bytes": 0}
    return new_handle(code, new_node(code, members, {"view": view}, handled=True))


def new_handle(code: BytecodeBuilder, node: int, *, aliased: bool = False) -> int:
    """`Tensor(node)` in bytecode, for a new node. `aliased`: the caller sets its alias."""
    out = code.new(Tensor)
    code.set_slot(out, Tensor, "_node", node)
    if not aliased:
        code.set_const(out, Tensor, "_alias", None)
    code.set_slot(node, Node, "handle", code.new_weakref(out))
    return out


# Tensor arguments of functions; Python numbers (complex includes all of them) are weakly typed.
ArrayLike = Tensor | np.ndarray[Any, Any] | np.generic | complex


def leaf_of(node: Node, slot: GradSlot) -> Node:
    """A leaf node of this value, whose gradients go to the slot."""
    node = detached(node)
    if node.prim.name == "constant":  # a leaf needs memory of its own
        node = ew.stop_gradient(node)
    node.tracked = True
    node.grad_slot = slot
    return node


def view_of(x: Tensor, path: Path) -> Tensor:
    """A view of a tensor."""
    base = node = x._node
    for step in path:
        # most have one argument, and need no tuple of them
        node = step[0](node, step[1]) if len(step) == 2 else step[0](node, *step[1:])
    if node is base and base.grad_slot is not None:
        node = identity(node, sees_writes=True)
    return registered(x, node, path)


def registered(x: Tensor, node: Node, path: Path) -> Tensor:
    """The tensor of a node that is a view of x."""
    out: Tensor
    if x._alias is None:  # temporaries that are viewed once are most of them
        out = _fast_view.call(x, node, path)
        if out is not GUARD_FAILED:
            return out
    else:
        out = _fast_another_view.call(x, node, path)
        if out is not GUARD_FAILED:
            x._alias[0].append(node.handle)
            return out
    out = _fast_handle.call(node)
    if out is GUARD_FAILED:
        out = Tensor(node)
    aliases.register(x, out, path)
    return out


def _write_handle(code: BytecodeBuilder) -> int:
    """`Tensor(node)` of a node without a handle."""
    node = code.load_arg(0)
    code.is_const(code.get_member(node, Node, "handle"), None)  # guards that it is a node
    return new_handle(code, node)


_fast_handle = FastCall(1, _write_handle)


def _guard_view(code: BytecodeBuilder, x: int, node: int) -> int:
    """Guards a tensor and the node of a view, without a handle, that are both tracked, or neither;
    the tensor's node."""
    base = code.get_member(x, Tensor, "_node")
    code.is_const(code.get_member(node, Node, "handle"), None)
    code.is_same(code.load_slot(base, Node, "tracked"), code.load_slot(node, Node, "tracked"))
    return base


def _write_another_view(code: BytecodeBuilder) -> int:
    """The handle of a further view of a root, which is to be added to its group."""
    x, node, path = (code.load_arg(i) for i in range(3))
    _guard_view(code, x, node)
    alias = code.get_member(x, Tensor, "_alias")
    code.len_eq(code.load_item(alias, 1), 0)
    out = new_handle(code, node, aliased=True)
    code.set_slot(out, Tensor, "_alias", code.new_tuple([code.load_item(alias, 0), path]))
    return out


_fast_another_view = FastCall(3, _write_another_view)


def _write_view(code: BytecodeBuilder) -> int:
    """`registered` of the first view of a tensor."""
    x, node, path = (code.load_arg(i) for i in range(3))
    base = _guard_view(code, x, node)
    code.is_const(code.get_member(x, Tensor, "_alias"), None)
    out = new_handle(code, node, aliased=True)
    first = code.load_slot(node, Node, "handle")
    group = aliases.write_group(code, code.new_weakref(x), first, base)
    code.set_slot(out, Tensor, "_alias", code.new_tuple([group, path]))
    code.set_slot(x, Tensor, "_alias", code.new_tuple([group, code.load_const(())]))
    return out


_fast_view = FastCall(3, _write_view)


def snapshot(x: Tensor) -> Tensor:
    """The values of this moment, without history: memory is shared until x changes."""
    return Tensor(detached(x._node, sees_writes=False))


def scalar_node(number: Any, dtype: DType) -> Node:
    """The constant of a Python scalar in a dtype; a tensor of one element is cast to it."""
    if isinstance(number, (dt.Weak, Tensor)):
        return _cast_scalar(number, dtype) if isinstance(number, Tensor) else number.node(dtype)
    if isinstance(number, np.generic):
        number = number.item()
    if dtype.is_integer:
        low, high = dt.int_range(dtype)
        if not low <= number <= high:
            raise OverflowError(f"Python integer {number} is out of range for {dtype.name}")
        return constant(int(number), dtype)
    if dtype.kind == "float":
        return constant(float(number), dtype)
    return constant(complex(number) if dtype.is_complex else bool(number), dtype)


def _cast_scalar(x: Tensor, dtype: DType) -> Node:
    if x.size != 1:
        raise ShapeError(f"a number or a tensor of one element is needed, not shape {x.shape}")
    if x.dtype.is_complex and not dtype.is_complex:
        raise DTypeError(f"a {x.dtype.name} tensor does not fit where {dtype.name} is needed")
    return ew.cast(reshape(x._node, ()) if x.ndim else x._node, dtype)


def node_of(x: Any, op: str, dev: Device | None = None) -> Node:
    """The node of a tensor, NumPy array (on `dev`) or scalar."""
    if x.__class__ is Tensor or isinstance(x, Tensor):
        return x._node
    if dt.scalar_kind(x) is not None:
        return scalar_node(x, dt.scalar_dtype(x))
    if isinstance(x, (np.ndarray, np.generic)):
        array = np.asarray(x)
        return from_host(array, dt.as_dtype(array.dtype), dev or default.device)
    raise TypeError(f"{op}: expected a tensor, not {named_kind(x)}; make one with nm.asarray")


def named_kind(x: Any) -> str:
    """The type of an object that is no operand, with its library where its name is ours."""
    kind = type(x)
    library = kind.__module__.partition(".")[0]
    return f"a {library}.{kind.__name__}" if kind.__name__ == "Tensor" else kind.__name__


def method(*names: str) -> Callable[[Function], Function]:
    """Install a function as a method of Tensor, under these names (default: its own)."""

    def install(function: Function) -> Function:
        for name in names or (function.__name__,):
            setattr(Tensor, name, function)
        return function

    return install


def attribute(
    name: str,
    get: Callable[[Tensor], Any],
    doc: str,
    set_: Callable[[Tensor, Any], None] | None = None,
) -> None:
    """Install functions as a property of Tensor."""
    setattr(Tensor, name, property(get, set_, doc=doc))
