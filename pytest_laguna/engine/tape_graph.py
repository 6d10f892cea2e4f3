# SPDX-License-Identifier: Apache-2.0
"""CPU stand-in for a CUDA graph: a tape of a segment's dispatched operations, replayed on the same tensors.

``recording()`` lasts as long as a breakable capture. In it each ``TapeGraph`` records the operations dispatched between
its ``capture_begin`` and ``capture_end``. A custom operation with a Python kernel is not recorded itself, but its
operations are; so a break inside it can end one tape and begin the next. A tape keeps every tensor it has seen, like
the memory pool of a CUDA graph.

It refuses the same as a device graph: host values and shapes that depend on data. A dispatch mode cannot see
``Tensor.tolist`` and ``Tensor.numpy``; their values are baked into the tape.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

_ALLOCATIONS = {
    "aten::empty", "aten::empty_strided", "aten::empty_like", "aten::empty_permuted", "aten::new_empty",
    "aten::new_empty_strided",
}  # fmt: skip
_INDEXED = {"aten::index", "aten::index_put", "aten::index_put_", "aten::_index_put_impl_"}
# In inference mode composite operations reach a dispatch mode as a whole, without the tags of their parts.
_DYNAMIC_SHAPE = {
    "aten::argwhere", "aten::is_nonzero", "aten::masked_select", "aten::nonzero_numpy", "aten::repeat_interleave",
    "aten::unique_consecutive", "aten::unique_dim", "aten::_unique2",
}  # fmt: skip
# Operations with a host value that depends on metadata alone.
_METADATA = {
    "aten::can_cast", "aten::dim", "aten::is_complex", "aten::is_contiguous", "aten::is_floating_point",
    "aten::is_same_size", "aten::numel", "aten::result_type", "aten::size", "aten::storage_offset", "aten::stride",
    "aten::sym_numel", "aten::sym_size", "aten::sym_storage_offset", "aten::sym_stride",
}  # fmt: skip
_HOST_KINDS = {"BoolType", "FloatType", "IntType", "NumberType", "SymIntType"}


class CaptureError(RuntimeError):
    """A capture dispatched an operation that no graph can hold."""


@dataclasses.dataclass(frozen=True, slots=True)
class _Step:
    """One recorded call; later calls read the tensors that it returned at capture."""

    operation: Callable[..., Any]
    arguments: Sequence[Any]
    keywords: dict[str, Any]
    results: tuple[torch.Tensor | None, ...]

    def run(self) -> None:
        returned = self.operation(*self.arguments, **self.keywords)
        if not self.results:
            return
        fresh = returned if isinstance(returned, (tuple, list)) else (returned,)
        for kept, new in zip(self.results, fresh, strict=True):
            if kept is None:
                continue
            if new.shape != kept.shape:
                message = f"{self.operation}: seen shape {tuple(new.shape)} in replay; expected {tuple(kept.shape)}"
                raise CaptureError(message)
            kept.copy_(new)


class TapeGraph:
    """Replaces ``torch.cuda.CUDAGraph`` in a breakable capture: ``capture_begin``, ``capture_end``, ``replay``."""

    def __init__(self) -> None:
        self._steps: list[_Step] = []
        self._inference = False

    def __len__(self) -> int:
        """Number of recorded operations."""
        return len(self._steps)

    def capture_begin(self, pool: object = None) -> None:
        """Start recording, without the device's memory ``pool``; raises CaptureError if no tape may begin here."""
        del pool
        if not _RECORDER.entered:
            raise CaptureError("tape: seen a begin outside recording(); expected it inside, or nothing is recorded")
        if _RECORDER.tape is not None:
            raise CaptureError("tape: seen a begin while another one records; expected no nested captures")
        self._inference = torch.is_inference_mode_enabled()
        _RECORDER.tape = self

    def capture_end(self) -> None:
        """Stop recording; raises CaptureError if this tape does not record."""
        if _RECORDER.tape is not self:
            raise CaptureError("tape: seen an end without a begin; expected the tape that records")
        _RECORDER.tape = None

    def replay(self) -> None:
        """Run the recorded operations on the tensors of the capture."""
        # In-place operations on inference tensors are refused outside inference mode.
        with torch.inference_mode() if self._inference else contextlib.nullcontext():
            for step in self._steps:
                step.run()

    def record(self, operation: Any, arguments: Sequence[Any], keywords: dict[str, Any]) -> Any:
        """Run one operation and append it to the tape; raises CaptureError if no graph could hold it."""
        _refuse_host_values(operation, arguments)
        known = {_storage(tensor) for tensor in _tensors((arguments, keywords))}
        returned = operation(*arguments, **keywords)
        fresh = [tensor for tensor in _tensors(returned) if tensor.numel() and _storage(tensor) not in known]
        if not _computes(operation, fresh):
            return returned
        _refuse_overlapping(operation, fresh)
        self._steps.append(_Step(_replayed(operation), arguments, keywords, _results(operation, returned, fresh)))
        return returned


@contextlib.contextmanager
def recording() -> Iterator[None]:
    """Allow tapes to record inside the block, and clean up after it; raises CaptureError if nested."""
    if _RECORDER.entered:
        raise CaptureError("recording(): seen entered twice; expected no nested captures")
    _RECORDER.entered = True
    try:
        with _RECORDER:
            yield
    finally:
        _RECORDER.entered = False
        _RECORDER.tape = None


class _Recorder(TorchDispatchMode):
    """One dispatch mode for a whole breakable capture; only the tape changes at a break.

    A mode for each segment would have to be left and entered in the middle of dispatching the broken operation.
    """

    tape: TapeGraph | None = None
    entered = False

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        del types
        keywords = kwargs or {}
        if self.tape is None:
            return func(*args, **keywords)
        key = _python_kernel_key(func)
        if key is None:
            return self.tape.record(func, args, keywords)
        with self:
            # torch 2.13: the kernel registered under one dispatch key, called without dispatching anew.
            return func._op_dk(key, *args, **keywords)  # noqa: SLF001


_RECORDER = _Recorder()  # type: ignore[no-untyped-call]  # torch's own


@functools.cache
def _python_kernel_key(operation: Any) -> Any:
    """The dispatch key of an operation's Python kernel for the CPU; None if the kernel is native."""
    namespace, name = operation._schema.name.split("::")  # noqa: SLF001 - torch 2.13
    overload = operation._schema.overload_name  # noqa: SLF001 - torch 2.13
    full = f"{namespace}/{name}.{overload}" if overload else f"{namespace}/{name}"
    for key in ("CPU", "CompositeExplicitAutograd", "CompositeImplicitAutograd"):
        if f"{full}/{key}" in torch.library._impls:  # noqa: SLF001 - torch 2.13: every kernel registered from Python
            return getattr(torch._C.DispatchKey, key)  # noqa: SLF001 - torch 2.13
    return None


def _name(operation: Any) -> str:
    return str(operation._schema.name)  # noqa: SLF001 - torch 2.13


def _storage(tensor: torch.Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)  # noqa: SLF001 - torch 2.13: the storage's identity, also where it holds nothing


def _tensors(values: Any) -> list[torch.Tensor]:
    return [leaf for leaf in tree_leaves(values) if isinstance(leaf, torch.Tensor)]


def _refuse_host_values(operation: Any, arguments: Sequence[Any]) -> None:
    name = _name(operation)
    if name in _INDEXED:
        indices = [index for index in arguments[1] if index is not None]
        if any(index.dtype in {torch.bool, torch.uint8} for index in indices):
            raise CaptureError(f"{name}: seen a boolean mask in a capture; expected a shape independent of data")
        return
    returns = operation._schema.returns  # noqa: SLF001 - torch 2.13
    host_value = name not in _METADATA and any(value.type.kind() in _HOST_KINDS for value in returns)
    tags = {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape}
    if host_value or name in _DYNAMIC_SHAPE or tags.intersection(operation.tags):
        raise CaptureError(f"{name}: seen in a capture; expected no host value and no shape that depends on data")


def _computes(operation: Any, fresh: Sequence[torch.Tensor]) -> bool:
    """True if a replay must run the operation: it does not for allocations and aliases of the arguments.

    Operations such as ``contiguous`` may copy or alias, so their result decides, not their name.
    """
    schema = operation._schema  # noqa: SLF001 - torch 2.13
    if schema.is_mutable or operation.namespace not in {"aten", "prims", "prim"}:
        return True
    return bool(fresh) and _name(operation) not in _ALLOCATIONS


def _refuse_overlapping(operation: Any, fresh: Sequence[torch.Tensor]) -> None:
    for tensor in fresh:
        if any(stride == 0 and size > 1 for stride, size in zip(tensor.stride(), tensor.shape, strict=True)):
            message = f"{_name(operation)}: seen a new tensor of strides {tensor.stride()}; expected a writable one"
            raise CaptureError(message)


def _results(operation: Any, returned: Any, fresh: Sequence[torch.Tensor]) -> tuple[torch.Tensor | None, ...]:
    if not fresh:
        return ()
    values = returned if isinstance(returned, (tuple, list)) else (returned,)
    results = tuple(value if any(value is tensor for tensor in fresh) else None for value in values)
    if sum(result is not None for result in results) != len(fresh):
        message = f"{_name(operation)}: seen new tensors in a nested structure; expected them where a replay finds them"
        raise CaptureError(message)
    return results


def _replayed(operation: Any) -> Callable[..., Any]:
    if operation.namespace != "c10d":
        return operation  # type: ignore[no-any-return]

    def and_wait(*arguments: Any, **keywords: Any) -> Any:
        # A collective returns at once, and the wait after it is not dispatched, so the tape must wait itself.
        returned = operation(*arguments, **keywords)
        for leaf in tree_leaves(returned):
            if isinstance(leaf, torch.ScriptObject):
                leaf.wait()  # type: ignore[attr-defined]  # a c10d Work
        return returned

    return and_wait
