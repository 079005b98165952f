"""The training text: the bytes of some files, cut into equal shards, and batches drawn from a shard. Everything is a pure
function of (files, rank, step), so a batch can be drawn again anywhere."""
import pathlib
import sys
from typing import Sequence

import torch


def read_text(paths: Sequence[str]) -> bytes:
    """In order; a folder stands for its regular files in name order (links are skipped: they would repeat a text)."""
    parts = []
    for path in map(pathlib.Path, paths):
        files = sorted(p for p in path.iterdir() if p.is_file() and not p.is_symlink()) if path.is_dir() else [path]
        parts += [file.read_bytes() for file in files]
    return b"".join(parts)


class Shard:
    """A rank's equal slice of the text."""

    def __init__(self, text: bytes, rank: int, ranks: int, context: int) -> None:
        part = text[len(text) * rank // ranks:len(text) * (rank + 1) // ranks]
        if len(part) <= context:
            sys.exit(f"the text has only {len(text)} bytes for {ranks} workers")
        self._bytes = torch.frombuffer(bytearray(part), dtype=torch.uint8).long()
        self._rank = rank
        self._context = context

    def batch(self, size: int, step: int) -> torch.Tensor:
        """size x (context + 1) bytes as int64, from pseudo-random places."""
        random = torch.Generator().manual_seed((self._rank << 32) | step)
        starts = torch.randint(len(self._bytes) - self._context, (size, 1), generator=random)
        return self._bytes[starts + torch.arange(self._context + 1)]
