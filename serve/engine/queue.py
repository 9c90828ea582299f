"""The order in which chunks of recordings are decoded, and which of them share a batch."""

from collections.abc import Hashable
from typing import Generic, NamedTuple, TypeVar

Item = TypeVar("Item")


class _Waiting(NamedTuple, Generic[Item]):
    turn: float
    order: int
    kind: Hashable
    owner: Hashable
    seconds: float
    item: Item


class FairQueue(Generic[Item]):
    """Chunks in the order of self-clocked fair queueing (Golestani 1994).

    The turn of a chunk is its seconds, added to the turn of its owner's last chunk or to the turn
    that is being served, whichever is later. So each owner gets the same share of the work: a short
    recording precedes all but the first chunks of long ones, and long ones are not postponed
    forever. `seconds` may be any other measure of work.
    """

    def __init__(self) -> None:
        self._waiting: list[_Waiting[Item]] = []
        self._turns: dict[Hashable, float] = {}
        self._now, self._n_put = 0.0, 0

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def seconds(self) -> float:
        """Return the seconds of audio in the queue."""
        return sum(w.seconds for w in self._waiting)

    def put(self, owner: Hashable, kind: Hashable, seconds: float, item: Item) -> None:
        """Add an owner's next chunk; only chunks of the same kind share a batch."""
        turn = max(self._turns.get(owner, 0.0), self._now) + seconds
        self._turns[owner] = turn
        self._n_put += 1
        self._waiting.append(_Waiting(turn, self._n_put, kind, owner, seconds, item))

    def take(self, batch_seconds: float) -> list[Item]:
        """Remove and return the first chunk and others of its kind, in turn, as far as they fit.

        Padded to the longest, all chunks together have at most `batch_seconds`; the first one alone
        may be longer. An owner's chunks keep their order.
        """
        batch: list[_Waiting[Item]] = []
        longest, passed_over = 0.0, set()
        for each in sorted(self._waiting):
            padded = max(longest, each.seconds) * (len(batch) + 1)
            fits = each.kind == batch[0].kind and padded <= batch_seconds if batch else True
            if fits and each.owner not in passed_over:
                batch.append(each)
                longest = max(longest, each.seconds)
            else:
                passed_over.add(each.owner)
        if batch:
            self._now = batch[0].turn
            taken = {each.order for each in batch}
            self._waiting = [w for w in self._waiting if w.order not in taken]
        return [each.item for each in batch]

    def drop(self, owner: Hashable) -> None:
        """Remove an owner and its chunks."""
        self._turns.pop(owner, None)
        self._waiting = [w for w in self._waiting if w.owner != owner]
