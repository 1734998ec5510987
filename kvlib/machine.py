"""What this machine is: the line that stands beside every measured number."""

import contextlib
import os
import platform
from importlib.metadata import version
from pathlib import Path

import torch


def processor() -> str:
    """Name of the processor, as the system gives it."""
    try:
        with open("/proc/cpuinfo") as file:
            names = [
                line.split(":", 1)[1].strip() for line in file if line.startswith("model name")
            ]
    except OSError:
        names = []
    return names[0] if names else platform.processor() or platform.machine()


def memory_bytes() -> int | None:
    """Bytes of main memory, or None where the system does not say."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return None


def clock_mhz() -> float | None:
    """Clock of the fastest core just now, in MHz, or None where the system does not say."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return None
    return max(
        (float(line.split(":")[1]) for line in lines if line.startswith("cpu MHz")), default=None
    )


def facts(device: str = "cpu") -> dict:
    """Processor, cores, threads, memory, versions and device, as plain values for JSON."""
    found = dict(
        processor=processor(),
        cores=os.cpu_count(),
        threads=torch.get_num_threads(),
        clock_mhz=clock_mhz(),
        memory_bytes=memory_bytes(),
        system=platform.system(),
        python=platform.python_version(),
        torch=torch.__version__,
        transformers=version("transformers"),
        numpy=version("numpy"),
        simd=torch.backends.cpu.get_cpu_capability(),
        device=str(device),
    )
    if torch.device(device).type == "cuda":
        card = torch.cuda.get_device_properties(device)
        found.update(
            device_name=card.name,
            device_memory_bytes=card.total_memory,
            cuda=torch.version.cuda,
            tf32=torch.backends.cuda.matmul.fp32_precision == "tf32",
        )
        with contextlib.suppress(Exception):  # needs a library of the driver's that few install
            found["device_clock_mhz"] = torch.cuda.clock_rate(device)
    return found


def line(dtype: torch.dtype = torch.float32, device: str = "cpu") -> str:
    """One line naming the machine, threads, dtype and device, to print beside measurements."""
    here = facts(device)
    where = here.get("device_name", here["processor"])
    return (
        f"torch {here['torch']}, {here['threads']} threads of {here['cores']} cores, "
        f"{str(dtype).removeprefix('torch.')} on {device} ({where})"
    )
