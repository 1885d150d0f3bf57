"""A device this machine does not have, pretended: tensors that say they are on it, and refuse to meet any that are not.

The numbers are computed on the CPU, so that whole runs can be compared with the CPU's. What real devices allow is
allowed: copies from one to another, and single numbers of the CPU among tensors of a device.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

COPIES = {"aten::copy_", "aten::_to_copy", "aten::to"}


class Elsewhere(torch.Tensor):
    """A tensor on a pretended device."""

    numbers: torch.Tensor
    where: torch.device
    __torch_function__ = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(cls, real: torch.Tensor, where: torch.device) -> Elsewhere:
        """For torch's own code it has no data (device meta), so that nothing can read it but the mode below."""
        out: Elsewhere = torch.Tensor._make_wrapper_subclass(  # type: ignore[attr-defined]
            cls, real.size(), strides=real.stride(), dtype=real.dtype, device="meta"
        )
        out.numbers, out.where = real, where
        return out

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        """Where it says it is."""
        return self.where

    def tolist(self) -> Any:
        """Its numbers, which torch itself would not fetch from a subclass."""
        return self.numbers.tolist()

    def __getitem__(self, index: Any) -> torch.Tensor:
        """As torch does it: rows listed in Python become a tensor beside this one."""
        return super().__getitem__(self._index(index))

    def __setitem__(self, index: Any, value: Any) -> None:
        """The same."""
        super().__setitem__(self._index(index), value)

    def _index(self, index: Any) -> Any:
        if isinstance(index, tuple):
            return tuple(self._index(one) for one in index)
        if isinstance(index, list):
            kind = torch.bool if index and isinstance(index[0], bool) else torch.long
            return torch.tensor(index, dtype=kind, device=self.where)
        return index

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Outside the mode it is of no use."""
        raise AssertionError(f"{func} of a pretended tensor outside of pretended devices")


class Pretending(TorchDispatchMode):
    """While open, tensors can be made on devices of a kind, and operations that mix devices raise."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind
        self.latest = torch.device(kind, 0)  # where torch last worked: its own code may go on there by "meta" alone

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """One operation: check where its tensors are, compute it on the CPU, say that the result is there too."""
        leaves = tree_leaves((args, kwargs))
        tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
        there = {tensor.where for tensor in tensors if isinstance(tensor, Elsewhere)}
        if func._schema.name not in COPIES:
            self._check(func, tensors, there)
        target = next(iter(there), None)
        for asked in (leaf for leaf in leaves if isinstance(leaf, torch.device)):
            if asked.type == self.kind:
                target = torch.device(asked.type, asked.index or 0)
            elif asked.type == "meta":
                target = target or self.latest
            else:
                target = None
        self.latest = target or self.latest
        out = func(*tree_map(_here, args), **tree_map(_here, kwargs or {}))
        return self._wrapped(func, out, args, target)

    def _check(self, func: Any, tensors: list[torch.Tensor], there: set[torch.device]) -> None:
        here = any(tensor.dim() > 0 for tensor in tensors if not isinstance(tensor, Elsewhere))
        if len(there) > 1 or (there and here):
            places = [f"{tuple(tensor.shape)} on {tensor.device}" for tensor in tensors]
            raise RuntimeError(f"{func} mixes devices: {', '.join(places)}")

    def _wrapped(self, func: Any, out: Any, args: Any, target: torch.device | None) -> Any:
        if any(returned.alias_info is not None and returned.alias_info.is_write for returned in func._schema.returns):
            return args[0]  # changed in place
        return out if target is None else tree_map(lambda leaf: self._there(leaf, target), out)

    def _there(self, leaf: Any, target: torch.device) -> Any:
        if not isinstance(leaf, torch.Tensor):
            return leaf
        if self.kind == "mps" and leaf.dtype == torch.float64:
            raise TypeError("this device has no float64")
        with torch.inference_mode(False):  # a view of an ordinary tensor must be one too
            return Elsewhere(leaf, target)


def _here(leaf: Any) -> Any:
    """The CPU's numbers for a pretended tensor, the CPU for a pretended device."""
    if isinstance(leaf, torch.device):
        return torch.device("cpu")
    return leaf.numbers if isinstance(leaf, Elsewhere) else leaf


@contextmanager
def pretended(monkeypatch: pytest.MonkeyPatch, kind: str = "cuda") -> Iterator[None]:
    """Devices of a kind that this machine need not have."""
    own_generator = torch.Generator
    monkeypatch.setattr(torch.cuda, "_lazy_init", lambda: None)
    monkeypatch.setattr(torch, "Generator", lambda device="cpu": own_generator())
    torch._C._set_only_lift_cpu_tensors(True)  # torch.tensor(numbers, device=...) passes through the mode
    torch.__future__.set_overwrite_module_params_on_conversion(True)  # module.to makes new parameters
    try:
        with Pretending(kind):
            yield
    finally:
        torch._C._set_only_lift_cpu_tensors(False)
        torch.__future__.set_overwrite_module_params_on_conversion(False)
