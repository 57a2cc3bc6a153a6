"""What one call of twinrun.digest takes for one tensor on a GPU: of the host, and until the device is done.

    python3 bench/digest_calls_bench.py

Calls follow one another without waiting, as in a training; microseconds a call.
"""

from __future__ import annotations

import time

import torch

import twinrun


def measured(tensor: torch.Tensor, calls: int) -> tuple[float, float]:
    """Microseconds of one call: of the host, and of the device."""
    for _ in range(5):
        twinrun.digest(tensor)
    torch.cuda.synchronize()
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start = time.perf_counter()
    begin.record()
    made = [twinrun.digest(tensor) for _ in range(calls)]
    end.record()
    host = time.perf_counter() - start
    torch.cuda.synchronize()
    assert len({int(d) for d in made}) == 1
    return host / calls * 1e6, begin.elapsed_time(end) / calls * 1e3


def main() -> None:
    """Measures and prints a table."""
    print(f"{torch.cuda.get_device_name()}, PyTorch {torch.__version__}")
    print("| type | elements | host, us | device, us | GB/s |\n|---|---:|---:|---:|---:|")
    for dtype in (torch.bfloat16, torch.float32, torch.int8):
        for count in (1_600, 1 << 20, 13_107_200, 52_428_800, 104_857_600, 1 << 29):
            tensor = torch.randint(-100, 100, (count,), device="cuda", dtype=torch.int8).to(dtype)
            host, device = measured(tensor, 200 if count < 1 << 28 else 20)
            rate = tensor.numel() * tensor.element_size() / device / 1e3
            print(f"| {dtype} | {count:,} | {host:.1f} | {device:.1f} | {rate:,.0f} |", flush=True)


if __name__ == "__main__":
    main()
