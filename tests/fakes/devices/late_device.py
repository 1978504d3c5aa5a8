"""A device that computes late: operations on its tensors are put into a queue, which the host's waiting empties.

The queue computes on the CPU what torch would have computed at once. An operation runs only when somebody waits for a
copy of its result, or of a later one: later than on any GPU. Whoever reads a tensor of the device without such a wait,
or mixes it with one of the host, gets an error: on a GPU that would wait for all that was launched before.
"""

from __future__ import annotations

import os
import threading
import traceback
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeVar

import torch
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_leaves, tree_map

from mmserve.ipc.arena import Arena
from mmserve.model_backend.platforms.reference import TorchPlatform

T = TypeVar("T")
DEVICE, _HOST = torch.device("meta"), torch.device("cpu")
"""What the tensors say: they have shapes, and no memory that the host could read."""


class HostSync(Exception):
    """The host would have waited for the device."""


class LateTensor(torch.Tensor):
    """``numbers`` are there once the operation that makes them was computed."""

    is_meta = False
    queue: LateDevice
    shape_only: torch.Tensor
    numbers: torch.Tensor | None

    @staticmethod
    def __new__(cls, queue: LateDevice, shape_only: torch.Tensor, numbers: torch.Tensor | None = None) -> LateTensor:
        size, stride, offset = shape_only.size(), shape_only.stride(), shape_only.storage_offset()
        made: LateTensor = torch.Tensor._make_wrapper_subclass(
            cls, size, strides=stride, storage_offset=offset, dtype=shape_only.dtype, device=DEVICE
        )
        made.queue, made.shape_only, made.numbers = queue, shape_only, numbers
        return made

    @classmethod
    def __torch_dispatch__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        queue = next(each.queue for each in tree_leaves((args, kwargs)) if isinstance(each, LateTensor))
        return queue.__torch_dispatch__(function, types, args, kwargs)


class LateDevice(TorchDispatchMode):
    """Operations on the device's tensors go into its queue. ``with``: so do those of this thread that make some.

    ``loading``: they are computed at once, and tensors of the host may be copied to the device, as for weights.
    """

    def __init__(self) -> None:
        super().__init__()
        self.loading = True
        self._queue: deque[Callable[[], None]] = deque()
        self._computing = threading.RLock()
        self.among_others = False
        """Its collectives end when another device has come to them, which must not keep this one's host waiting."""
        self.num_waits = 0
        """Of the host, for copies of what the device computes."""
        self.num_launches = 0
        """Copies and kernels. A view of a tensor is none."""

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        leaves = tree_leaves((args, kwargs))
        late = [each for each in leaves if isinstance(each, LateTensor)]
        if not late and DEVICE not in leaves:
            return function(*args, **kwargs)
        if not self.loading and any(type(each) is torch.Tensor and each.dim() for each in leaves):
            raise HostSync(f"{function} takes a tensor of the host")
        if _HOST in leaves or "_local_scalar_dense" in str(function):
            raise HostSync(f"{function} reads a tensor of the device")
        known = {id(each.shape_only): each for each in late}
        with torch.inference_mode(mode=False), torch.no_grad():
            shapes = function(*tree_map(_shape_only, args), **tree_map(_shape_only, kwargs))
            made = tree_map(lambda each: self._late(each, known), shapes)
        self.put(lambda: _compute(function, args, kwargs, made), launches=not _is_view(function))
        if self.loading:
            self.finish()
        return made

    def _late(self, leaf: Any, known: dict[int, LateTensor]) -> Any:
        """An operation in place returns its own argument."""
        if not isinstance(leaf, torch.Tensor):
            return leaf
        return known[id(leaf)] if id(leaf) in known else LateTensor(self, leaf)

    def put(self, work: Callable[[], None], *, launches: bool = True) -> None:
        self.num_launches += launches
        self._queue.append(work)

    def record(self, work: Callable[[], T]) -> tuple[T, Callable[[], None]]:
        """What ``work`` returns, and what computes all that it would have queued, as often as wanted."""
        queue, num_launches, recorded = self._queue, self.num_launches, deque[Callable[[], None]]()
        self._queue = recorded
        try:
            made = work()
        finally:
            self._queue, self.num_launches = queue, num_launches

        def compute() -> None:
            for each in recorded:
                each()

        return made, compute

    @torch.inference_mode()
    def finish(self, until: Callable[[], bool] = lambda: False) -> None:
        """Compute what is queued, in order, until there is enough."""
        with self._computing:
            while self._queue and not until():
                self._queue.popleft()()

    def compute_meanwhile(self) -> None:
        """Compute what is queued in a thread of its own, as a GPU does while its host waits.

        An error ends the process, as torch's watchdog does when a collective of NCCL fails: the host may wait for a
        result that never comes.
        """

        def compute() -> None:
            try:
                self.finish()
            except Exception:  # noqa: BLE001 - the device ends with it
                traceback.print_exc()
                os._exit(1)

        threading.Thread(target=compute, daemon=True).start()

    @property
    def num_queued(self) -> int:
        return len(self._queue)

    def in_another_thread(self) -> TorchDispatchMode:
        """The mode for a thread that did not enter this one: what it makes is the device's as well."""
        return _InAnotherThread(self)


class _InAnotherThread(TorchDispatchMode):
    def __init__(self, device: LateDevice) -> None:
        super().__init__()
        self._device = device

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return self._device.__torch_dispatch__(function, types, args, kwargs)


def _is_view(function: Any) -> bool:
    aliases = [each.alias_info for each in function._schema.returns]
    return any(alias is not None and not alias.is_write for alias in aliases)


def _shape_only(leaf: Any) -> Any:
    return leaf.shape_only if isinstance(leaf, LateTensor) else leaf


def _real(leaf: Any) -> Any:
    if isinstance(leaf, LateTensor):
        assert leaf.numbers is not None, "operations are computed in the order in which they were issued"
        return leaf.numbers
    return _HOST if leaf == DEVICE else leaf


def _compute(function: Any, args: Any, kwargs: Any, made: Any) -> None:
    results = tree_leaves(function(*tree_map(_real, args), **tree_map(_real, kwargs)))
    for late, real in zip(tree_leaves(made), results, strict=True):
        if isinstance(late, LateTensor):
            late.numbers = real


class LateTransfers:
    """See ``model_backend.transfers.Transfers``."""

    late = True
    is_host = False
    device = DEVICE

    def __init__(self, queue: LateDevice) -> None:
        self._queue = queue

    def to_device(self, values: torch.Tensor) -> torch.Tensor:
        assert type(values) is torch.Tensor, "a tensor of the host"
        self._queue.num_launches += 1
        with _disable_current_modes():
            return LateTensor(self._queue, torch.empty_like(values, device=DEVICE), values.clone())

    def copy_into(self, target: torch.Tensor, values: torch.Tensor) -> None:
        assert isinstance(target, LateTensor)
        assert type(values) is torch.Tensor, "a tensor of the host"
        copy = values.clone()
        self._queue.put(lambda: _real(target).copy_(copy))

    def to_host(self, values: torch.Tensor) -> _LateCopy:
        assert isinstance(values, LateTensor)
        return _LateCopy(self._queue, values)


class _LateCopy:
    def __init__(self, queue: LateDevice, values: LateTensor) -> None:
        self._queue, self._values = queue, values
        self._host: torch.Tensor | None = None
        self._done = threading.Event()
        queue.put(self._copy)

    def _copy(self) -> None:
        assert self._values.numbers is not None
        self._host = self._values.numbers.clone()
        self._done.set()

    def wait(self) -> torch.Tensor:
        self._queue.num_waits += 1
        if self._queue.among_others:
            self._queue.compute_meanwhile()
            self._done.wait()
        else:
            self._queue.finish(self._done.is_set)
        assert self._host is not None
        return self._host


class LateRowCopies:
    """See ``model_backend.row_copies.RowCopies``. Nothing is copied before somebody waits for the copies, and that
    computes nothing of the device's other queue."""

    late = True

    def __init__(self, queue: LateDevice) -> None:
        self._queue = queue
        self._under_way: deque[Callable[[], object]] = deque()

    def read(self, rows: Sequence[torch.Tensor]) -> tuple[list[torch.Tensor], _Flags]:
        with _disable_current_modes():
            copied = [LateTensor(self._queue, torch.empty_like(each, device=DEVICE)) for each in rows]
        flags = _Flags()

        def copy() -> None:
            for late, each in zip(copied, rows, strict=True):
                late.numbers = each.clone()
            flags.found = torch.stack([torch.isfinite(each).all() for each in rows])

        self._under_way.append(copy)
        if self._queue.loading:
            self.wait()
        return list(copied), flags

    def write(self, rows: Sequence[tuple[torch.Tensor, torch.Tensor]]) -> None:
        for source, target in rows:
            numbers = source.numbers if isinstance(source, LateTensor) else source
            assert numbers is not None, "it has been computed"
            self._under_way.append(partial(target.copy_, numbers))

    def wait(self) -> None:
        with _disable_current_modes():
            while self._under_way:
                self._under_way.popleft()()


class _Flags:
    found: torch.Tensor | None = None

    def wait(self) -> torch.Tensor:
        assert self.found is not None, "the copies were not waited for"
        return self.found


class LatePlatform(TorchPlatform):
    """See ``platforms.interface.Platform``."""

    def __init__(self, queue: LateDevice) -> None:
        super().__init__(DEVICE, torch.float32)
        self.queue = queue

    def transfers(self) -> LateTransfers:
        return LateTransfers(self.queue)

    def row_copies(self, arena: Arena | None) -> LateRowCopies:
        return LateRowCopies(self.queue)
