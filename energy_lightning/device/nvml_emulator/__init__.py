"""The NVML emulator: unmodified pynvml, Zeus and this package's NVIDIA device on emulated boards.

    with NvmlEmulator([EmulatedBoard(gpu="a100-sxm4-40gb", permissions=())]) as nvml:   # in this process
        ...
    with NvmlServer([EmulatedBoard(), EmulatedBoard()]) as server:                      # for children
        subprocess.run(command, env=server.environment())
        server.state(0).locked_mhz

The driver's version says EMULATED: nothing that it measures may pass for a measurement. What trains meanwhile runs on
the CPU, as fast under every clock and limit: the boards' power follows them, the time of a step does not, so a plan or
a limit that is chosen here shows that choosing works, not what is best.
"""

from energy_lightning.device.nvml_emulator.board import PERMISSIONS, EmulatedBoard
from energy_lightning.device.nvml_emulator.client.codes import Code
from energy_lightning.device.nvml_emulator.driver import DRIVER_VERSION
from energy_lightning.device.nvml_emulator.live import BoardState, ControlCall
from energy_lightning.device.nvml_emulator.local import NvmlEmulator
from energy_lightning.device.nvml_emulator.server import NvmlServer

__all__ = [
    "DRIVER_VERSION",
    "PERMISSIONS",
    "BoardState",
    "Code",
    "ControlCall",
    "EmulatedBoard",
    "NvmlEmulator",
    "NvmlServer",
]
