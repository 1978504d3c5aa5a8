"""Copies between the host and a device, without waiting for what the device still computes.

Nothing else may move numbers between the two while a step is launched: torch's own ``to`` and ``tolist`` wait for all
operations that were issued before, so the next step could not be launched while one is computed.
"""

from __future__ import annotations

from typing import Protocol

import torch


class HostCopy(Protocol):
    """A copy that is under way."""

    def wait(self) -> torch.Tensor:
        """The copy on the host, once it is there; at once when it was waited for before. Any thread may wait."""
        ...


class Transfers(Protocol):
    """To and from one device."""

    @property
    def device(self) -> torch.device: ...

    @property
    def late(self) -> bool:
        """Operations return before the device has computed them, so the next step can be launched meanwhile."""
        ...

    @property
    def is_host(self) -> bool:
        """The device is the host's CPU: its tensors are memory that numpy reads and writes."""
        ...

    def to_device(self, values: torch.Tensor) -> torch.Tensor:
        """A tensor of the host, on the device. ``values`` must not change before operations that read the result were
        issued."""
        ...

    def copy_into(self, target: torch.Tensor, values: torch.Tensor) -> None:
        """As ``to_device``, into a tensor of the device."""
        ...

    def to_host(self, values: torch.Tensor) -> HostCopy:
        """Of what the operations issued so far make of ``values``, which later ones may change."""
        ...


class PlainTransfers:
    """See ``Transfers``. For a device that computes at once: one that does not, is waited for."""

    late = False

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.is_host = device == torch.device("cpu")

    def to_device(self, values: torch.Tensor) -> torch.Tensor:
        return values.to(self.device)

    def copy_into(self, target: torch.Tensor, values: torch.Tensor) -> None:
        target.copy_(values)

    def to_host(self, values: torch.Tensor) -> HostCopy:
        return _Here(values.clone() if self.is_host else values.to("cpu", copy=True))


class _Here:
    def __init__(self, values: torch.Tensor) -> None:
        self._values = values

    def wait(self) -> torch.Tensor:
        return self._values
