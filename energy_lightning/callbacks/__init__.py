"""The Lightning callbacks: profiler, optimizer, controller, monitor (floor 4)."""
