"""Prefix cache of one engine copy: blocks by hash id, least recently used out first."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence


class PrefixCache:
    """Blocks in use by running requests, and idle ones that a later request may find.

    >>> cache = PrefixCache(block=512)
    >>> cache.take([1, 2, 3], 1400, free=10_000), cache.take([1, 2, 9], 1500, free=10_000)
    (0, 1024)
    >>> cache.saved  # tokens that two requests hold together
    1024
    """

    def __init__(self, block: int) -> None:
        self.block = block
        self.users: dict[int, int] = {}
        self.idle: OrderedDict[int, None] = OrderedDict()
        self.saved = 0

    def take(self, ids: Sequence[int], prompt: int, free: float) -> int:
        """Tokens of a prompt that are found; its blocks are then in use. ``free`` tokens may hold idle blocks.

        One token at least is computed, as engines do: it gives the first answer token.
        """
        while self.idle and len(self.idle) * self.block > free:
            self.idle.popitem(last=False)
        found = 0
        for one in ids:
            if one not in self.users and one not in self.idle:
                break
            found += 1
        for one in ids:
            self.idle.pop(one, None)
            count = self.users.get(one, 0)
            self.users[one] = count + 1
            if count:
                self.saved += self.block
        return min(found * self.block, prompt - 1)

    def give(self, ids: Sequence[int]) -> None:
        """A request has gone; what nobody uses any more stays as long as there is room."""
        for one in ids:
            count = self.users[one] - 1
            if count:
                self.users[one] = count
                self.saved -= self.block
            else:
                del self.users[one]
                self.idle[one] = None
