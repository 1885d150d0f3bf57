"""What was asked for and what the machine has to a device and a precision; models to where they run."""

from __future__ import annotations

import threading

import torch

from slalom.errors import SlalomError

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}

_MOVING = threading.Lock()


def known_dtype(dtype: str | torch.dtype) -> torch.dtype:
    """A precision by its name, or as torch has it."""
    if isinstance(dtype, str):
        if dtype not in DTYPES:
            raise SlalomError(f"unknown dtype {dtype!r}; choose from {', '.join(DTYPES)}")
        return DTYPES[dtype]
    return dtype


def known_device(device: str | torch.device) -> torch.device:
    """A device that this machine has."""
    try:
        known = torch.device(device)
    except RuntimeError:
        raise SlalomError(f"unknown device {device!r}; give cpu, cuda, cuda:1 or mps, say") from None
    count = {"cpu": 1, "cuda": torch.cuda.device_count(), "mps": int(torch.backends.mps.is_available())}
    if (known.index or 0) >= count.get(known.type, 1):
        raise SlalomError(f"there is no device {device!s} on this machine; choose from {', '.join(_devices(count))}")
    return known


def _devices(count: dict[str, int]) -> list[str]:
    many = [f"cuda:{number}" for number in range(count["cuda"])]
    return ["cpu", *many, *(["mps"] if count["mps"] else [])]


def is_settled(model: torch.nn.Module) -> bool:
    """Whether a model must stay where it is: quantised, or spread over devices."""
    quantised = getattr(model, "hf_quantizer", None) is not None or getattr(model, "is_quantized", False)
    configured = getattr(getattr(model, "config", None), "quantization_config", None) is not None
    return bool(quantised or configured or getattr(model, "hf_device_map", None))


def place(model: torch.nn.Module, device: torch.device) -> torch.device:
    """Move a model to a device unless it is settled; where its inputs belong then.

    Threads may place the same model on the same device at once. For LMs on different devices, give each a model of its
    own: one that they share would move to and fro.
    """
    if device_of(model) != device and not is_settled(model):
        with _MOVING:
            model.to(device)
    return device_of(model)


def move(model: torch.nn.Module, device: str | torch.device | None, dtype: str | torch.dtype | None) -> None:
    """Bring a model someone else loaded to what is asked for, if anything is."""
    if device is None and dtype is None:
        return
    if is_settled(model):
        raise SlalomError("the model is quantised or spread over devices and stays so; leave device and dtype out")
    model.to(
        device=None if device is None else known_device(device), dtype=None if dtype is None else known_dtype(dtype)
    )


def device_of(model: torch.nn.Module) -> torch.device:
    """Where a model's inputs belong."""
    return next(model.parameters()).device


def double(tensor: torch.Tensor) -> torch.Tensor:
    """The same in double precision, on the CPU where its own device has none."""
    return tensor.to(double_device(tensor.device)).double()


def double_device(device: torch.device) -> torch.device:
    """The device itself if it computes in double precision, else the CPU."""
    return torch.device("cpu") if device.type == "mps" else device
