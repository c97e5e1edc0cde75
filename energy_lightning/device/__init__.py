"""GPUs behind one protocol: NVIDIA and emulated (floor 2)."""
