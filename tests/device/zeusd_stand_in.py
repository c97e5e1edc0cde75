"""A stand-in for zeusd: HTTP over a Unix socket as Zeus's own client speaks it; sets emulated boards as root would."""

from __future__ import annotations

import http.server
import json
import socketserver
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlparse

import pynvml

from energy_lightning.device.nvml_emulator import PERMISSIONS, NvmlEmulator

GROUPS = ("gpu-read", "gpu-control")


class Zeusd:
    """What the daemon does, and what it was asked.

    order: daemon's index -> NVML's: a container may show fewer GPUs, and count them otherwise.
    """

    def __init__(self, nvml: NvmlEmulator, groups: tuple[str, ...], order: tuple[int, ...]) -> None:
        self.nvml, self.groups, self.order = nvml, groups, order
        self.refusing: str | None = None
        self.asked: list[tuple[str, dict[str, str]]] = []

    def answer(self, path: str, query: dict[str, str]) -> tuple[int, Any]:
        if path == "/discover":
            gpus = [{"id": i, "name": "some GPU"} for i in range(len(self.order))]
            return 200, {"gpus": gpus, "cpus": [], "enabled_api_groups": list(self.groups), "auth_required": False}
        handle = pynvml.nvmlDeviceGetHandleByIndex(self.order[int(query["gpu_ids"])])
        if path == "/gpu/get_cumulative_energy":
            return 200, {query["gpu_ids"]: {"energy_mj": pynvml.nvmlDeviceGetTotalEnergyConsumption(handle)}}
        self.asked.append((path, query))
        if self.refusing is not None:
            return 403, self.refusing
        self._set(path, query, handle)
        return 200, {}

    def _set(self, path: str, query: dict[str, str], handle: Any) -> None:
        index = self.order[int(query["gpu_ids"])]
        self.nvml.permit(index, *PERMISSIONS)
        if path == "/gpu/set_gpu_locked_clocks":
            clocks_mhz = int(query["min_clock_mhz"]), int(query["max_clock_mhz"])
            pynvml.nvmlDeviceSetGpuLockedClocks(handle, *clocks_mhz)
        elif path == "/gpu/reset_gpu_locked_clocks":
            pynvml.nvmlDeviceResetGpuLockedClocks(handle)
        elif path == "/gpu/set_power_limit":
            pynvml.nvmlDeviceSetPowerManagementLimit(handle, int(query["power_limit_mw"]))
        self.nvml.permit(index)


@contextmanager
def zeusd(
    nvml: NvmlEmulator, socket: Path, *, groups: tuple[str, ...] = GROUPS, order: tuple[int, ...] = (0,)
) -> Iterator[Zeusd]:
    """A daemon at `socket` while entered."""
    daemon = Zeusd(nvml, groups, order)

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            address = urlparse(self.path)
            query = {name: values[0] for name, values in parse_qs(address.query).items()}
            status, content = daemon.answer(address.path, query)
            body = (content if isinstance(content, str) else json.dumps(content)).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        do_POST = do_GET

        def log_message(self, *arguments: Any) -> None:
            pass

        def address_string(self) -> str:
            return "local"

    with socketserver.ThreadingUnixStreamServer(str(socket), Handler) as server:
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        try:
            yield daemon
        finally:
            server.shutdown()
            thread.join()
