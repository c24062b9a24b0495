"""The GPUs that engines are compiled on, lent out one build at a time."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from draftyard.doors.gpu_devices import GpuDevice, read_gpu_devices
from draftyard.nouns.builder import BuildDevice
from draftyard.nouns.errors import ExitCode, Failure
from draftyard.nouns.gpu import Gpu
from draftyard.rules.gpu_products import product_of


def find_devices() -> tuple[BuildDevice, ...]:
    """The GPUs of this host that are products we compile for; those cut into instances (MIG) are left out."""
    return tuple(device for device in map(_device, read_gpu_devices()) if device is not None)


def _device(found: GpuDevice) -> BuildDevice | None:
    product = product_of(found.name)
    if product is None or found.mig:
        return None
    return BuildDevice(product, found.uuid, found.name, found.driver, found.compute_capability)


class DevicePool:
    """Lends each device to one build at a time."""

    def __init__(self, devices: tuple[BuildDevice, ...]) -> None:
        self._free = list(devices)
        self._products = {device.product for device in devices}
        self._changed = threading.Condition()

    @contextmanager
    def borrow(self, product: Gpu) -> Iterator[BuildDevice]:
        """A device of `product`, as soon as one is free; Failure when this host has none."""
        if product not in self._products:
            raise Failure(f"this host has no {product}", "build on a host that has one", ExitCode.ENVIRONMENT)
        with self._changed:
            self._changed.wait_for(lambda: any(device.product is product for device in self._free))
            device = next(device for device in self._free if device.product is product)
            self._free.remove(device)
        try:
            yield device
        finally:
            with self._changed:
                self._free.append(device)
                self._changed.notify_all()
