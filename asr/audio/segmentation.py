"""Where a wave is cut: at silences, as it comes. numpy alone, so that the service can do it too."""

from collections.abc import Iterable, Iterator

import numpy as np


def split_at_silence(
    blocks: Iterable[np.ndarray], sample_rate: int, max_seconds: float = 20.0
) -> Iterator[np.ndarray]:
    """Cut a wave that comes in blocks (samples,) into pieces (samples,) of at most `max_seconds`.

    The pieces are the wave in order, without gap or overlap. Each cut is in the middle of the
    quietest 100 ms of the last half of what a piece may hold. A piece is given as soon as its cut
    is known: one piece and one block are held, time is linear in the length.
    """
    hop, longest = sample_rate // 100, int(max_seconds * sample_rate)
    assert longest >= 40 * hop > 0, "pieces must be long enough to hold several 100 ms windows"
    held: list[np.ndarray] = []
    n_held = 0
    for block in blocks:
        held.append(block)
        n_held += len(block)
        while n_held > longest:
            wave = np.concatenate(held)
            cut = _quietest(wave[:longest], hop)
            yield wave[:cut]
            held, n_held = [wave[cut:]], n_held - cut
    if n_held:
        yield np.concatenate(held)


def _quietest(wave: np.ndarray, hop: int) -> int:
    """The middle of the quietest ten hops in the last half of a wave (samples,)."""
    first = -(-(len(wave) // 2) // hop)
    hops = wave[first * hop : len(wave) // hop * hop].reshape(-1, hop)
    power = np.square(hops, dtype=np.float64).sum(1)
    loudness = np.convolve(power, np.ones(10), "valid")
    # Of equally quiet windows (digital silence) the last one leaves the fewest pieces.
    last = len(loudness) - 1
    return (first + last - int(np.argmin(loudness[::-1])) + 5) * hop
