"""A folder for PYTHONPATH: its sitecustomize gives children the emulated NVML."""
