"""Which pieces of which recordings are decoded next, and which of them together."""

from collections.abc import Hashable
from typing import Generic, NamedTuple, TypeVar

Item = TypeVar("Item")


class _Waiting(NamedTuple, Generic[Item]):
    turn: float
    number: int
    kind: Hashable
    owner: Hashable
    seconds: float
    item: Item


class FairQueue(Generic[Item]):
    """Pieces that wait, in the order of self-clocked fair queueing (Golestani 1994).

    A piece's turn is its seconds after the turn of its owner's last piece, and never before the
    turn that is being served. So each owner gets the same share of the work: a short recording
    goes before all but the first pieces of long ones, and those still come forward.
    """

    def __init__(self) -> None:
        self._waiting: list[_Waiting[Item]] = []
        self._turns: dict[Hashable, float] = {}
        self._now, self._number = 0.0, 0

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def seconds(self) -> float:
        """How much waits."""
        return sum(w.seconds for w in self._waiting)

    def put(self, owner: Hashable, kind: Hashable, seconds: float, item: Item) -> None:
        """Let an owner's next piece wait; only pieces of the same kind are taken together."""
        turn = max(self._turns.get(owner, 0.0), self._now) + seconds
        self._turns[owner] = turn
        self._number += 1
        self._waiting.append(_Waiting(turn, self._number, kind, owner, seconds, item))

    def take(self, batch_seconds: float) -> list[Item]:
        """The piece whose turn it is and others of its kind, in turn, as far as they fit.

        As all are padded to the longest, that times their number is at most `batch_seconds`. An
        owner's pieces keep their order.
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
            taken = {each.number for each in batch}
            self._waiting = [w for w in self._waiting if w.number not in taken]
        return [each.item for each in batch]

    def drop(self, owner: Hashable) -> None:
        """Forget an owner and what waits of it."""
        self._turns.pop(owner, None)
        self._waiting = [w for w in self._waiting if w.owner != owner]
