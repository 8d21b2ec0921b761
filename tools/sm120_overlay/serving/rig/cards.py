"""The cards that the rig can present, as plain facts.

Nothing here was measured by this project except where a line says so. Capability, SM count and opt-in shared memory
are NVIDIA's: the compute-capability table, the architecture white papers, and the CUDA C++ Programming Guide's
"Technical Specifications per Compute Capability" (99 KiB for 12.x, 227 KiB for 9.0 and 10.0). Names and memory are
what `nvidia-smi` and `torch.cuda.get_device_name` print in public logs of these cards: the driver's figure, which is
below the marketing one. A GB10 shares the host's memory, and its `nvidia-smi` prints `[N/A]` for it; the total is
the 119.7 GiB that CUDA reports in public serving logs. NVLink is that of the data sheets: the SXM modules of B200, H200
and H100 are fully connected, the others have none.
"""

from __future__ import annotations

from dataclasses import dataclass

_KIB = 1024
_SMEM_12X = 99 * _KIB
_SMEM_9X_10X = 227 * _KIB


@dataclass(frozen=True)
class Card:
    """One kind of GPU, as a driver describes it."""

    name: str
    """What the driver calls it."""
    capability: tuple[int, int]
    """CUDA compute capability (major, minor)."""
    memory_mib: int
    """Total device memory in MiB."""
    sm_count: int
    """Streaming multiprocessors."""
    shared_memory_optin: int
    """Largest shared memory that one block may ask for, in bytes."""
    smi_shows_memory: bool = True
    """Whether `nvidia-smi --query-gpu=memory.total` prints a number."""
    nvlink: bool = False
    """Whether the cards of one machine are all connected by NVLink."""

    @property
    def memory_bytes(self) -> int:
        """Total device memory in bytes."""
        return self.memory_mib * _KIB * _KIB


RTX_PRO_6000_SERVER = Card("NVIDIA RTX PRO 6000 Blackwell Server Edition", (12, 0), 97_887, 188, _SMEM_12X)
RTX_PRO_6000_WORKSTATION = Card("NVIDIA RTX PRO 6000 Blackwell Workstation Edition", (12, 0), 97_887, 188, _SMEM_12X)
RTX_PRO_6000_MAX_Q = Card("NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition", (12, 0), 97_887, 188, _SMEM_12X)
RTX_5090 = Card("NVIDIA GeForce RTX 5090", (12, 0), 32_607, 170, _SMEM_12X)
DGX_SPARK = Card("NVIDIA GB10", (12, 1), 122_573, 48, _SMEM_12X, smi_shows_memory=False)
B200 = Card("NVIDIA B200", (10, 0), 183_359, 148, _SMEM_9X_10X, nvlink=True)
H200 = Card("NVIDIA H200", (9, 0), 143_771, 132, _SMEM_9X_10X, nvlink=True)
H100 = Card("NVIDIA H100 80GB HBM3", (9, 0), 81_559, 132, _SMEM_9X_10X, nvlink=True)

SM12X = (RTX_PRO_6000_SERVER, RTX_PRO_6000_WORKSTATION, RTX_PRO_6000_MAX_Q, RTX_5090, DGX_SPARK)
OTHERS = (B200, H200, H100)
ALL = (*SM12X, *OTHERS)
BY_NAME = {
    "rtx-pro-6000": RTX_PRO_6000_SERVER,
    "rtx-pro-6000-workstation": RTX_PRO_6000_WORKSTATION,
    "rtx-pro-6000-max-q": RTX_PRO_6000_MAX_Q,
    "rtx-5090": RTX_5090,
    "dgx-spark": DGX_SPARK,
    "b200": B200,
    "h200": H200,
    "h100": H100,
}
