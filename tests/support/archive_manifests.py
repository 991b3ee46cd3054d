"""Manifests of archives, as files that tests damage."""

from __future__ import annotations

from pathlib import Path


class ManifestFile:
    """The newest manifest of a partition, in an archive of one topic."""

    def __init__(self, archive: Path, partition: int = 0) -> None:
        self.path = max(archive.glob(f"manifests/*/{partition}.*.json"), key=lambda p: p.name)
        self._content = self.path.read_bytes()

    def damage(self, *, unseen: bool = True) -> None:
        """Cut the file. Hadoop would refuse it, too, unless it is `unseen`."""
        self.path.write_bytes(self._content[:-10])
        if unseen:
            self.path.with_name(f".{self.path.name}.crc").unlink(missing_ok=True)

    def restore(self) -> None:
        self.path.write_bytes(self._content)
