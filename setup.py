"""Ships the top-level conf/ inside the wheel as energy_lightning/_conf; everything else stands in pyproject.toml."""

from setuptools import find_packages, setup

setup(
    packages=[*find_packages(include=["energy_lightning", "energy_lightning.*"]), "energy_lightning._conf"],
    package_dir={"energy_lightning._conf": "conf"},
    package_data={
        "energy_lightning": ["py.typed", "emulation/gpus/*.yaml"],
        "energy_lightning._conf": ["*.yaml", "**/*.yaml"],
    },
)
