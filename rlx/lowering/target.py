"""
The machine that code is generated for.

A `Target` is passed down to every generator and never read from a global, so that a program for
another CPU can be printed on any machine and every instruction-set level can be tested on one.
"""

from __future__ import annotations

import ctypes
import os
import platform
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from rlx.errors import RlxError

PANEL = 16
"""Output rows that a weight panel interleaves, and the width in lanes of every kernel's vectors."""

LINE = 64
"""Bytes of a cache line."""

_AVX2 = ("avx", "avx2", "fma", "f16c")
_AVX512 = (*_AVX2, "avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512cd")
_ICELAKE = (*_AVX512, "avx512vnni", "gfni")
_SPR = (*_ICELAKE, "avx512bf16", "avx512fp16", "amx-tile", "amx-int8", "amx-bf16")

_X86 = "x86_64-unknown-linux-gnu"
_ARM = "aarch64-unknown-linux-gnu"

CPUS: dict[str, tuple[str, str, tuple[str, ...]]] = {
    "generic": (_X86, "x86-64", ()),
    "x86-64": (_X86, "x86-64", ()),
    "haswell": (_X86, "haswell", _AVX2),
    "x86-64-v3": (_X86, "x86-64-v3", _AVX2),
    "alderlake": (_X86, "alderlake", (*_AVX2, "avxvnni", "gfni")),
    "skylake-avx512": (_X86, "skylake-avx512", _AVX512),
    "x86-64-v4": (_X86, "x86-64-v4", _AVX512),
    "icelake-server": (_X86, "icelake-server", _ICELAKE),
    "znver4": (_X86, "znver4", (*_ICELAKE, "avx512bf16")),
    "sapphirerapids": (_X86, "sapphirerapids", _SPR),
    "neoverse-n1": (_ARM, "neoverse-n1", ("neon",)),
    "aarch64": (_ARM, "generic", ("neon",)),
}
"""Short name -> triple, LLVM's CPU name, and the features that generators ask about."""


@dataclass(frozen=True)
class Target:
    """A CPU as the generators see it."""

    name: str
    triple: str
    cpu: str
    features: frozenset[str]
    feature_string: str = ""
    """LLVM's `+a,-b` list; empty where the CPU's name says it all."""
    cores: int = 1
    """Threads a program may use: this process's affinity and cgroup quota on the host."""

    @staticmethod
    def named(name: str, cores: int = 1) -> Target:
        """
        Return the target called `name` (a key of `CPUS`, or `host`).

        Raises RlxError for a name that is not known.
        """
        if name == "host":
            return Target.host()
        if name not in CPUS:
            known = ", ".join(["host", *sorted(CPUS)])
            raise RlxError(f"unknown target cpu '{name}': expected one of {known}")
        triple, cpu, features = CPUS[name]
        return Target(name, triple, cpu, frozenset(features), cores=cores)

    @staticmethod
    def host() -> Target:
        """Return the machine that this process runs on."""
        return _host()

    def runs_on(self, other: Target) -> bool:
        """Return whether another machine runs this one's code."""
        same = self.triple.split("-")[0] == other.triple.split("-")[0]
        return same and (self == other or other.features >= self.features)

    def has(self, *features: str) -> bool:
        return self.features.issuperset(features)

    @property
    def avx512(self) -> bool:
        return self.has("avx512f", "avx512bw", "avx512vl")

    @property
    def avx2(self) -> bool:
        return self.has("avx2", "fma")

    @property
    def vector_bits(self) -> int:
        return 512 if self.avx512 else 256 if self.avx2 else 128

    @property
    def registers(self) -> int:
        """Return the number of vector registers."""
        return 32 if self.avx512 or self.triple.startswith(("aarch64", "arm64")) else 16

    @property
    def zen(self) -> bool:
        """
        Return whether this is an AMD CPU with AVX-512, which differs from Intel's in two ways.

        It reads memory faster by one stream than by several: on Zen 5 products of q4_1 with one row
        took 0.8 of the time with one, and attention of one query to 700 keys 0.6; on Emerald Rapids
        such products took 1.2 times as long. And it has more than two pipes for vectors of 512
        bits: what puts integer sums together runs beside the products.
        """
        return self.cpu.startswith("znver") and self.avx512

    @property
    def attributes(self) -> str:
        """Return LLVM function attributes that make a module's text independent of the machine."""
        features = f' "target-features"="{self.feature_string}"' if self.feature_string else ""
        return (
            f'nounwind "target-cpu"="{self.cpu}"{features} '
            f'"prefer-vector-width"="{self.vector_bits}"'
        )


_ARCH_PRCTL = 158
"""The number of the system call on x86-64 Linux (arch_prctl(2))."""
_REQUEST_PERMISSION, _TILE_DATA = 0x1023, 18
"""Its request for a CPU state that programs don't have at first, and the state of tiles."""


def _may_use_tiles() -> bool:
    """
    Ask the system for the use of tile registers, for all threads of this process and its children.

    Without permission the first use would kill the process.
    """
    if platform.system() != "Linux" or platform.machine() != "x86_64":
        return False
    call = ctypes.CDLL(None).syscall
    return call(_ARCH_PRCTL, _REQUEST_PERMISSION, _TILE_DATA) == 0


@cache
def _host() -> Target:
    import llvmlite.binding as llvm

    features = llvm.get_host_cpu_features()
    if features.get("amx-tile") and not _may_use_tiles():
        features.update({name: False for name in features if name.startswith("amx")})
    on = frozenset(name for name, present in features.items() if present)
    return Target(
        "host",
        llvm.get_process_triple(),
        llvm.get_host_cpu_name(),
        on,
        features.flatten(),
        usable_cores(),
    )


def usable_cores() -> int:
    """Return how many CPUs this process may use: its affinity, bounded by its cgroup's quota."""
    cores = (
        len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    )
    quota = cgroup_quota(Path("/proc/self/cgroup"), Path("/sys/fs/cgroup"))
    return max(1, min(cores, quota) if quota else cores)


def cgroup_quota(groups: Path, mounted: Path) -> int | None:
    """
    Return the CPU quota in whole CPUs, rounded up, or None where there is none.

    `groups` lists a process's control groups (cgroups(7), both versions), which are folders below
    `mounted`; each of their parents has a quota too, and the least counts. A container may see its
    own group as the root, under the name that it has outside.
    """
    try:
        lines = groups.read_text().splitlines()
    except OSError:
        return None
    quotas: list[int] = []
    for line in lines:
        _, controllers, name = line.split(":", 2)
        if not controllers:
            root, read = mounted, _quota
        elif "cpu" in controllers.split(","):
            root, read = mounted / controllers, _quota_of_version_1
        else:
            continue
        below = Path(name.lstrip("/"))
        quotas += [q for part in (below, *below.parents) if (q := read(root / part)) is not None]
    return min(quotas, default=None)


def _quota(folder: Path) -> int | None:
    return _whole(_read(folder / "cpu.max").split())


def _quota_of_version_1(folder: Path) -> int | None:
    names = ("cpu.cfs_quota_us", "cpu.cfs_period_us")
    return _whole([_read(folder / name).strip() for name in names])


def _whole(words: Sequence[str]) -> int | None:
    """Return a quota and its period as CPUs; a quota of `max`, or below 0, is none."""
    if len(words) != 2 or not all(word.isdecimal() for word in words):
        return None
    limit, period = map(int, words)
    return max(1, -(-limit // period)) if period else None


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
