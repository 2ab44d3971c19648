"""NCCL as engines call it: the library that torch has loaded, on torch's current stream, without torch.distributed."""

from __future__ import annotations

import contextlib
import ctypes
import os
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

# ncclDataType_t and ncclRedOp_t, nccl.h
FLOAT64, BFLOAT16, SUM = 8, 9, 0
LIBRARIES = ("libnccl.so.2", "librccl.so.1")
JOIN_S = 120.0


class UniqueId(ctypes.Structure):
    """ncclUniqueId, which NCCL takes by value."""

    _fields_ = [("internal", ctypes.c_byte * 128)]


class Communicator:
    """One rank's end of a group. Tensors lie on this rank's GPU; the calls only enqueue."""

    def __init__(self, rank: int, ranks: int, rendezvous: str):
        self.rank, self.ranks = rank, ranks
        self.library = _library()
        identity = UniqueId()
        if rank == 0:
            self._call("ncclGetUniqueId", ctypes.byref(identity))
            _leave_at(Path(rendezvous), bytes(identity.internal))
        else:
            ctypes.memmove(ctypes.byref(identity), _wait_for(Path(rendezvous)), 128)
        self.handle = ctypes.c_void_p()
        self._call("ncclCommInitRank", ctypes.byref(self.handle), ctypes.c_int(ranks), identity, ctypes.c_int(rank))

    def all_reduce(self, source: Any, target: Any) -> None:
        """Sum over ranks; float64 or bfloat16."""
        self._call("ncclAllReduce", _at(source), _at(target), _count(source), _type(source), ctypes.c_int(SUM),
                   self.handle, _stream())

    def all_gather(self, part: Any, whole: Any) -> None:
        """Every rank's part, one after the other."""
        self._call("ncclAllGather", _at(part), _at(whole), _count(part), _type(part), self.handle, _stream())

    def reduce_scatter(self, whole: Any, part: Any) -> None:
        """This rank's part of the sum."""
        self._call("ncclReduceScatter", _at(whole), _at(part), _count(part), _type(part), ctypes.c_int(SUM),
                   self.handle, _stream())

    def all_to_all(self, sources: Sequence[Any], targets: Sequence[Any]) -> None:
        """A part to and from every rank, as nccl-tests does it: sends and receives in one group."""
        with self.grouped():
            for peer in range(self.ranks):
                self.send(sources[peer], peer)
                self.receive(targets[peer], peer)

    def ring(self, source: Any, target: Any) -> None:
        """To the next rank, from the one before."""
        with self.grouped():
            self.send(source, (self.rank + 1) % self.ranks)
            self.receive(target, (self.rank - 1) % self.ranks)

    def send(self, source: Any, peer: int) -> None:
        """One way."""
        self._call("ncclSend", _at(source), _count(source), _type(source), ctypes.c_int(peer), self.handle, _stream())

    def receive(self, target: Any, peer: int) -> None:
        """The other end of `send`."""
        self._call("ncclRecv", _at(target), _count(target), _type(target), ctypes.c_int(peer), self.handle, _stream())

    @contextlib.contextmanager
    def grouped(self) -> Iterator[None]:
        """Calls inside are one operation."""
        self._call("ncclGroupStart")
        yield
        self._call("ncclGroupEnd")

    def close(self) -> None:
        """Give the group's memory back."""
        self._call("ncclCommDestroy", self.handle)

    def _call(self, name: str, *arguments: Any) -> None:
        code = getattr(self.library, name)(*arguments)
        if code:
            self.library.ncclGetErrorString.restype = ctypes.c_char_p
            raise RuntimeError(f"{name}: {self.library.ncclGetErrorString(code).decode()}")


def _library() -> Any:
    import torch  # noqa: F401 (loads NCCL, which is then found by its name)

    for name in LIBRARIES:
        with contextlib.suppress(OSError):
            return ctypes.CDLL(name)
    raise RuntimeError(f"torch brought none of {', '.join(LIBRARIES)}")


def _at(tensor: Any) -> ctypes.c_void_p:
    return ctypes.c_void_p(tensor.data_ptr())


def _count(tensor: Any) -> ctypes.c_size_t:
    return ctypes.c_size_t(tensor.numel())


def _type(tensor: Any) -> ctypes.c_int:
    return ctypes.c_int(FLOAT64 if tensor.element_size() == 8 else BFLOAT16)


def _stream() -> ctypes.c_void_p:
    import torch

    return ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)


def _leave_at(path: Path, identity: bytes) -> None:
    """The name of the group for the others, who see it whole or not at all."""
    path.with_suffix(".new").write_bytes(identity)
    os.replace(path.with_suffix(".new"), path)


def _wait_for(path: Path) -> bytes:
    begin = time.monotonic()
    while time.monotonic() - begin < JOIN_S:
        with contextlib.suppress(OSError):
            return path.read_bytes()
        time.sleep(0.02)
    raise RuntimeError("rank 0 did not start the group")
