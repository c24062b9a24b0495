"""Finds the tensors in a file of `torch.save` without running what is in it and without reading their bytes."""

import pickle
import re
from collections.abc import Mapping
from math import prod
from pathlib import Path

import torch
from torch import Tensor

from draftyard.nouns.errors import Failure
from draftyard.nouns.tensor import TensorHeader, TensorType

_TYPES: Mapping[torch.dtype, TensorType] = {
    torch.float32: TensorType.F32,
    torch.float16: TensorType.F16,
    torch.bfloat16: TensorType.BF16,
    torch.float8_e4m3fn: TensorType.F8_E4M3,
    torch.int64: TensorType.I64,
    torch.int32: TensorType.I32,
    torch.int16: TensorType.I16,
    torch.int8: TensorType.I8,
    torch.uint8: TensorType.U8,
    torch.bool: TensorType.BOOL,
}
_POINTER_START = b"version https://git-lfs."
_AGAIN = "fetch the file again, or save the model as safetensors"


def pickle_headers(path: Path) -> dict[str, TensorHeader]:
    """Headers by name of a flat table of tensors; offsets count from the start of the file.

    torch's restricted unpickler (`weights_only`) knows tensors and plain containers alone, and with the device `meta`
    it reads no data. Failure names what is wrong: another kind of file, other objects, no table, a tensor that does not
    lie in the file as it is.
    """
    _refuse_other_files(path)
    try:
        found = torch.load(path, map_location="meta", weights_only=True, mmap=True)
    except pickle.UnpicklingError as error:
        wish = re.search(r"GLOBAL ([\w.]+)", str(error))
        asked = f" (it asks for {wish[1]})" if wish else ""
        raise Failure(f"{path.name} holds more than tensors{asked} and is not opened", _AGAIN) from error
    # torch raises whatever the damage leads to: RuntimeError, OSError, EOFError, KeyError, ValueError and others.
    except Exception as error:
        first = (str(error).strip().splitlines() or [type(error).__name__])[0].partition(". ")[0]
        raise Failure(f"{path.name} cannot be read as a file of torch.save: {first}", _AGAIN) from error
    if not isinstance(found, Mapping) or not found:
        raise Failure(f"{path.name} holds no table of tensors", _AGAIN)
    strange = [str(name) for name, value in found.items() if not isinstance(name, str) or not isinstance(value, Tensor)]
    if strange:
        raise Failure(f"{path.name} holds entries that are no tensors: {', '.join(strange[:10])}", _AGAIN)
    size_bytes = path.stat().st_size
    return {name: _header(path.name, name, value, size_bytes) for name, value in found.items()}


def _refuse_other_files(path: Path) -> None:
    try:
        with path.open("rb") as file:
            start = file.read(len(_POINTER_START))
    except OSError as error:
        raise Failure(f"{path.name} cannot be read: {error.strerror}", "check the file and its permissions") from error
    if start == _POINTER_START:
        raise Failure(f"{path.name} is a Git LFS pointer, fetch the real file", "run `git lfs pull` where it lies")
    if not start.startswith(b"PK"):
        raise Failure(f"{path.name} is no file of torch.save as torch writes it since 1.6 (a zip archive)", _AGAIN)


def _header(file: str, name: str, tensor: Tensor, file_bytes: int) -> TensorHeader:
    if tensor.dtype not in _TYPES:
        raise Failure(f"{file}: {name} has the type {tensor.dtype}", _AGAIN)
    kind, shape = _TYPES[tensor.dtype], tuple(tensor.shape)
    # torch notes where the bytes of a storage lie in the file when it loads to the device meta (torch 2.7 and later).
    start = getattr(tensor.untyped_storage(), "_checkpoint_offset", None)
    if not isinstance(start, int) or not tensor.is_contiguous():
        raise Failure(f"{file}: {name} is no plain tensor whose bytes lie one after the other", _AGAIN)
    offset_bytes = start + int(tensor.storage_offset()) * kind.item_bytes
    size_bytes = prod(shape) * kind.item_bytes
    if offset_bytes < 0 or offset_bytes + size_bytes > file_bytes:
        raise Failure(f"{file} is truncated: {name} ends beyond its {file_bytes} bytes", _AGAIN)
    return TensorHeader(name, kind, shape, file, offset_bytes, size_bytes)
