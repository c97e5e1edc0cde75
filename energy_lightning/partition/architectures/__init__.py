"""One declarative description per transformer block."""
