"""A GPU model that predicts time and energy of a training job (floor 1: numpy only)."""
