"""GPUs while a task runs, by NVML: clocks, power, temperature, use, and why clocks are held down.

The library of the driver is opened at run time, where there is a driver. Nothing of it is called
for a task that cannot see a GPU, and a failing call leaves its figure out.
"""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import ctypes

__all__ = ["LIBRARY", "Gpus", "chosen"]

LIBRARY = "TWINRUN_NVML"  # an environment variable: another library than the driver's
_NAME = "libnvidia-ml.so.1"
_MOST = 64  # GPUs of a node
_GRAPHICS, _MEMORY = 0, 2  # kinds of clocks
_TEMPERATURE = 0  # of the GPU itself
# Bits of nvmlDeviceGetCurrentClocksThrottleReasons (nvml.h), by what holds clocks down.
_REASONS = {
    "power": 0x4 | 0x80,  # the software's limit, the hardware's brake
    "heat": 0x20 | 0x40,  # slowed down by software, by hardware
    "hardware": 0x8,  # heat, power brake, or a fast trigger
    "sync": 0x10,  # held to the clocks of other GPUs
}


class _Gpu:
    """Readings of one GPU."""

    def __init__(self, handle: object, index: int) -> None:
        self.handle, self.index = handle, index
        self.values: dict[str, list[float]] = {}
        self.reasons = dict.fromkeys(_REASONS, 0)
        self.looks = 0
        self.energy: float | None = None


def chosen(visible: str | None, count: int, ids: list[str]) -> list[int]:
    """Numbers of the GPUs that a task may see. visible: CUDA_VISIBLE_DEVICES; None: all. ids: the
    UUIDs of the GPUs.

    CUDA counts GPUs otherwise than NVML unless CUDA_DEVICE_ORDER says PCI_BUS_ID; batch systems
    name them in that order.
    """
    if visible is None:
        return list(range(count))
    found = []
    for word in visible.split(","):
        word = word.strip()
        at = int(word) if re.fullmatch(r"[0-9]{1,4}", word) else -1
        if at < 0 and word.startswith("GPU-") and len(word) > 4:
            at = next((k for k, uuid in enumerate(ids) if uuid.startswith(word)), -1)
        if not 0 <= at < count:
            break  # CUDA ignores what follows one that is not there
        found.append(at)
    return sorted(set(found))


class Gpus:
    """The GPUs of a task. Without a driver, or where it sees none, there are none."""

    def __init__(self, environment: dict[str, str]) -> None:
        self._gpus: list[_Gpu] = []
        self._library: ctypes.CDLL | None = None
        name = os.environ.get(LIBRARY) or (_NAME if os.path.exists("/dev/nvidiactl") else None)
        visible = environment.get("CUDA_VISIBLE_DEVICES")
        if name is None or (visible is not None and not visible.strip()):
            return
        try:
            self._open(name, visible)
        except (ImportError, OSError, AttributeError):
            self._gpus = []

    def _open(self, name: str, visible: str | None) -> None:
        import ctypes

        library = ctypes.CDLL(name)
        if library.nvmlInit_v2() != 0:
            return
        self._library = library
        count = ctypes.c_uint()
        if library.nvmlDeviceGetCount_v2(ctypes.byref(count)) != 0:
            return
        handles: list[Any] = []
        ids: list[str] = []
        for index in range(min(count.value, _MOST)):
            handle = ctypes.c_void_p()
            if library.nvmlDeviceGetHandleByIndex_v2(ctypes.c_uint(index), ctypes.byref(handle)) != 0:
                handle = ctypes.c_void_p()
            text = ctypes.create_string_buffer(96)
            known = bool(handle.value) and library.nvmlDeviceGetUUID(handle, text, ctypes.c_uint(96)) == 0
            handles.append(handle)
            ids.append(text.value.decode(errors="replace") if known else "")
        self._gpus = [_Gpu(handles[k], k) for k in chosen(visible, len(handles), ids) if handles[k].value]
        for gpu in self._gpus:
            gpu.energy = self._energy(gpu)

    def _ask(self, function: str, kind: str, gpu: _Gpu, *arguments: int) -> float | None:
        """One figure; None where the library, the GPU or the permission lacks."""
        import ctypes

        value = getattr(ctypes, kind)()
        call = getattr(self._library, function, None)
        if call is None or call(gpu.handle, *map(ctypes.c_uint, arguments), ctypes.byref(value)) != 0:
            return None
        return value.value

    def _energy(self, gpu: _Gpu) -> float | None:
        """Millijoules since the driver was loaded."""
        return self._ask("nvmlDeviceGetTotalEnergyConsumption", "c_ulonglong", gpu)

    def look(self) -> None:
        """Reads all of them."""
        for gpu in self._gpus:
            gpu.looks += 1
            for name, function, arguments, scale in (
                ("clock_mhz", "nvmlDeviceGetClockInfo", (_GRAPHICS,), 1.0),
                ("memory_clock_mhz", "nvmlDeviceGetClockInfo", (_MEMORY,), 1.0),
                ("power_w", "nvmlDeviceGetPowerUsage", (), 1e-3),
                ("temperature_c", "nvmlDeviceGetTemperature", (_TEMPERATURE,), 1.0),
            ):
                value = self._ask(function, "c_uint", gpu, *arguments)
                if value is not None:
                    gpu.values.setdefault(name, []).append(value * scale)
            reasons = self._ask("nvmlDeviceGetCurrentClocksThrottleReasons", "c_ulonglong", gpu)
            if reasons is not None:
                gpu.values.setdefault("throttled", []).append(
                    float(any(int(reasons) & bits for bits in _REASONS.values()))
                )
                for name, bits in _REASONS.items():
                    gpu.reasons[name] += bool(int(reasons) & bits)

    def end(self) -> dict | None:
        """The figures of the task: means over its GPUs and looks, the highest temperature, and each
        GPU. None without one.
        """
        if not self._gpus:
            return None
        each = []
        for gpu in self._gpus:
            one: dict[str, Any] = {"index": gpu.index, "looks": gpu.looks}
            one |= {name: sum(v) / len(v) for name, v in gpu.values.items()}
            if "temperature_c" in gpu.values:
                one["temperature_c"] = max(gpu.values["temperature_c"])
            if "throttled" in gpu.values:
                one["reasons"] = {name: n / gpu.looks for name, n in gpu.reasons.items() if n}
            last = self._energy(gpu)
            if gpu.energy is not None and last is not None and last >= gpu.energy:
                one["energy_j"] = (last - gpu.energy) / 1e3
            each.append(one)
        found: dict[str, Any] = {"devices": each}
        for name, join in (
            ("clock_mhz", _mean), ("memory_clock_mhz", _mean), ("power_w", _mean), ("throttled", _mean),
            ("temperature_c", max), ("energy_j", sum),
        ):  # fmt: skip
            values = [one[name] for one in each if name in one]
            if values:
                found[name] = join(values)
        assert self._library is not None
        self._library.nvmlShutdown()
        self._gpus = []
        return found


def _mean(values: list[float]) -> float:
    return sum(values) / len(values)
