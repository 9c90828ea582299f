"""Measure the accuracy, the latency and the cost of a streaming model.

    python -m benchmarks.streaming BUNDLE CUTS [--offline BUNDLE] [--most 200] [--seconds 10]
        [--sessions 1 8 32] [--silence SECONDS] [--hour] [--record]

Accuracy: the CER of each utterance as a recording, and streamed in chunks of 640, 320 and 160 ms.
`--offline` is a model that was trained without chunks; `--silence` is what ends a segment, in s.

Latency: utterances follow each other in takes of about `--seconds`, each of which a client sends in
blocks of 100 ms as time passes, and ends. Time is simulated: a computation begins when its audio
has arrived and the one before is done, and takes the processor time that it takes here, on one
core. So other work on the machine changes nothing. `again` is the way of models without a streaming
encoder, with the same weights (serve.routes.live_session): the segment is recognized anew, by
greedy CTC, whenever there are 0.7 s more of it, and at its end by the bundle's method. Times of
tokens are those of the final segments.

`--hour` streams an hour without an end, and compares it with its segments, as recordings.
"""

import argparse
import resource
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

import asr
from asr.data.manifest import load_cuts, read_wave, text_of
from asr.evaluation.cer import ErrorCounts, character_errors
from asr.joining import join_texts
from asr.transcription.recognizer import Recognizer
from asr.transcription.stream import Session, advance
from asr.transcription.transcript import Token
from benchmarks import record
from benchmarks.record import Result, Value

BLOCK, PAUSE, NEW_AUDIO = 0.1, 0.3, 0.7  # seconds
CHUNKS = (16, 8, 4)
Transcribe = Callable[[np.ndarray, str], str]  # a waveform, by a method


# --- accuracy -----------------------------------------------------------------------------------


def accuracy(
    model: Recognizer, offline: Recognizer | None, waves: list[np.ndarray], texts: list[str],
    endpoint: asr.Endpoint | None = None,
) -> list[list[Value]]:  # fmt: skip
    """Return a row for each way of decoding."""
    ways: list[tuple[str, Transcribe]] = []
    if offline:
        ways.append(("without chunks in training", whole(offline)))
    ways.append(("with, as recordings", whole(model)))
    ms = 1000 * model.config.step_seconds
    ways += [(f"with, streamed: {c * ms:.0f} ms", streamed(model, c, endpoint)) for c in CHUNKS]
    rows: list[list[Value]] = []
    for name, transcribe in ways:
        for method in ("ctc_greedy", "rescore"):
            errors = ErrorCounts()
            for wave, text in zip(waves, texts, strict=True):
                errors += character_errors(text, transcribe(wave, method))
            rows.append([name, method, 100 * errors.rate])
            record.progress(f"{name}, {method}: {errors}")
    return rows


def whole(model: Recognizer) -> Transcribe:
    """Return a function that transcribes a waveform as a recording."""

    def transcribe(wave: np.ndarray, method: str) -> str:
        options = model.config.decoding.changed({"method": method})
        return model.transcribe(asr.Samples(wave, model.sample_rate), options).text

    return transcribe


def streamed(model: Recognizer, chunk: int, endpoint: asr.Endpoint | None) -> Transcribe:
    """Return a function that transcribes a waveform in chunks of so many encoder steps."""

    def transcribe(wave: np.ndarray, method: str) -> str:
        options = model.config.decoding.changed({"method": method})
        results = model.stream([wave], options, endpoint, chunk)
        return join_texts(result.text for result in results if result.is_final)

    return transcribe


# --- latency ------------------------------------------------------------------------------------


@dataclass
class Shown:
    """What a client sees of a take: partials (time, number of tokens), and the final tokens."""

    partials: list[tuple[float, int]] = field(default_factory=list)
    tokens: list[Token] = field(default_factory=list)
    final: float = 0.0  # seconds after its end
    work: float = 0.0  # seconds of processor time
    seconds: float = 0.0


class Clock:
    """The simulated time, which computations move by their processor time."""

    def __init__(self) -> None:
        self.now, self.work = 0.0, 0.0

    def wait(self, until: float) -> None:
        """Let time pass up to a moment, if it has not."""
        self.now = max(self.now, until)

    def run(self, compute: Callable[[], object]) -> object:
        """Return what a computation returns, after its time."""
        start = time.process_time()
        found = compute()
        spent = time.process_time() - start
        self.now, self.work = self.now + spent, self.work + spent
        return found


def take_streamed(model: Recognizer, waves: list[np.ndarray]) -> list[Shown]:
    """Send takes, all at once, to a session each; chunks that are ready share a batch."""
    clock, block = Clock(), int(BLOCK * model.sample_rate)
    sessions = [Session(model) for _ in waves]
    shown = [Shown(seconds=len(wave) / model.sample_rate) for wave in waves]
    n_blocks = [-(-len(wave) // block) for wave in waves]
    for i in range(max(n_blocks)):
        clock.wait((i + 1) * BLOCK)
        for session, wave, n in zip(sessions, waves, n_blocks, strict=True):
            if i < n:
                session.feed(wave[i * block : (i + 1) * block])
            if i + 1 == n:
                session.end()
        while ready := [k for k, session in enumerate(sessions) if session.is_ready]:
            batch = [sessions[k] for k in ready]
            found = clock.run(lambda batch=batch: advance(model, batch))  # type: ignore[misc]
            for k, results in zip(ready, found, strict=True):  # type: ignore[call-overload]
                note(shown[k], results, clock.now)
        for k, n in enumerate(n_blocks):
            if i + 1 == n:
                note(shown[k], clock.run(sessions[k].flush), clock.now)
                shown[k].final = clock.now - n * BLOCK
    shown[0].work = clock.work
    return shown


def note(shown: Shown, results: object, now: float) -> None:
    """Add results to what a client sees."""
    assert isinstance(results, list)
    for result in results:
        tokens = list(result.segment.tokens or ())
        if result.is_final:
            shown.tokens += tokens
        else:
            shown.partials.append((now, len(shown.tokens) + len(tokens)))


def take_again(model: Recognizer, wave: np.ndarray) -> Shown:
    """Send a take to a session that recognizes all of it again and again."""
    clock, rate = Clock(), model.sample_rate
    shown = Shown(seconds=len(wave) / rate)
    greedy = model.config.decoding.changed({"method": "ctc_greedy"})

    def recognize(samples: np.ndarray, options: object) -> list[Token]:
        found = model.transcribe(asr.Samples(samples, rate), options)  # type: ignore[arg-type]
        return [token for segment in found.segments for token in segment.tokens or ()]

    done, n_blocks = 0.0, -(-len(wave) // int(BLOCK * rate))
    for i in range(n_blocks - 1):
        at = (i + 1) * BLOCK
        if at < clock.now or at - done < NEW_AUDIO:
            continue
        clock.wait(at)
        done, part = at, wave[: int(at * rate)]
        tokens = clock.run(lambda part=part: recognize(part, greedy))  # type: ignore[misc]
        shown.partials.append((clock.now, len(tokens)))  # type: ignore[arg-type]
    clock.wait(n_blocks * BLOCK)
    shown.tokens = clock.run(lambda: recognize(wave, model.config.decoding))  # type: ignore[assignment]
    shown.final, shown.work = clock.now - n_blocks * BLOCK, clock.work
    return shown


def delays(shown: Shown) -> Iterator[float]:
    """Yield the seconds from each token's end until a partial had so many tokens."""
    for i, token in enumerate(shown.tokens):
        times = [now for now, n in shown.partials if n > i]
        if times:
            yield times[0] - token.end


def latency_row(name: str, all_shown: list[Shown]) -> list[Value]:
    """Return medians and 95th percentiles in milliseconds, and the real-time factor."""
    firsts = [s.partials[0][0] - s.tokens[0].start for s in all_shown if s.partials and s.tokens]
    found = [firsts, [d for s in all_shown for d in delays(s)], [s.final for s in all_shown]]
    row: list[Value] = [name]
    for values in found:
        row += [1000 * float(np.percentile(values or [np.nan], q)) for q in (50, 95)]
    return [*row, sum(s.work for s in all_shown) / sum(s.seconds for s in all_shown)]


def latency(
    model: Recognizer, takes: list[np.ndarray], sessions: list[int]
) -> Iterator[list[Value]]:
    """Yield a row for each number of sessions, and for the way without a streaming encoder."""
    take_again(model, takes[0])  # warm up: some work is done once
    take_streamed(model, takes[:1])
    yield latency_row("again and again, 1 session", [take_again(model, take) for take in takes])
    for n in sessions:
        groups = [takes[i : i + n] for i in range(0, len(takes) - n + 1, n)]
        groups = groups or [takes * (n // len(takes) + 1)]
        found = [shown for group in groups for shown in take_streamed(model, group)]
        yield latency_row(f"streamed, {n} sessions at once", found)


def joined(waves: list[np.ndarray], rate: int, seconds: float) -> list[np.ndarray]:
    """Return takes of about so many seconds, of utterances with a pause behind each."""
    takes, parts = [], list[np.ndarray]()
    for wave in waves:
        parts += [wave, np.zeros(int(PAUSE * rate), np.float32)]
        if sum(map(len, parts)) >= seconds * rate:
            takes.append(np.concatenate(parts))
            parts = []
    return takes


# --- an hour ------------------------------------------------------------------------------------


def hour(model: Recognizer, waves: list[np.ndarray]) -> Iterator[list[Value]]:
    """Stream an hour; yield rows of counts, with some of its segments recognized again alone."""
    rate = model.sample_rate
    cycle = np.concatenate([np.pad(wave, (0, int(1.2 * rate))) for wave in waves])
    blocks = (cycle.take(range(i, i + rate), mode="wrap") for i in range(0, 3600 * rate, rate))
    peaks, same, total, worst = list[int](), 0, 0, 0.0
    for result in model.stream(blocks):
        if not result.is_final:
            continue
        segment, peaks = result.segment, [*peaks, _peak_mib()]
        if len(peaks) % 25 == 1:  # a part of them is recognized again, from its own audio
            begin, end = round(segment.start * rate), round(segment.end * rate)
            (*_, alone) = model.stream([cycle.take(range(begin, end), mode="wrap")])
            same, total = same + (alone.text == segment.text), total + 1
            pairs = zip(alone.segment.tokens or (), segment.tokens or (), strict=False)
            worst = max([worst, *(abs(a.start + segment.start - b.start) for a, b in pairs)])
    yield ["segments", len(peaks)]
    yield ["recognized again alone", total]
    yield ["of these with the same text", same]
    yield ["largest difference of times (ms)", 1000 * worst]
    yield ["peak memory after a tenth (MiB)", peaks[len(peaks) // 10]]
    yield ["peak memory at the end (MiB)", peaks[-1]]


def _peak_mib() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024


def main() -> None:
    """Measure, print and record."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("bundle", type=Path)
    parser.add_argument("cuts", type=Path)
    parser.add_argument("--offline", type=Path)
    parser.add_argument("--most", type=int, default=200, help="utterances")
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--sessions", type=int, nargs="+", default=[1, 8, 32])
    parser.add_argument("--silence", type=lambda s: asr.Endpoint(silence_seconds=float(s)))
    parser.add_argument("--hour", action="store_true")
    record.add_option(parser)
    args = parser.parse_args()
    model = asr.load(args.bundle, "cpu")
    cuts = sorted((c for c in load_cuts(args.cuts) if text_of(c)), key=lambda c: c.id)
    cuts = cuts[:: -(-len(cuts) // args.most)]
    waves = [read_wave(cut, model.sample_rate).numpy() for cut in cuts]
    offline = asr.load(args.offline, "cpu") if args.offline else None
    rows = accuracy(model, offline, waves, [text_of(cut) for cut in cuts], args.silence)
    name, n = args.bundle.name, f"{len(cuts)} utterances."
    head = {"model": "", "decoding": "", "CER (%)": ".2f"}
    results = [Result(title=f"Streamed and whole: {name}", note=n, columns=head, rows=rows)]
    takes = joined(waves, model.sample_rate, args.seconds)
    found = []
    for row in latency(model, takes, args.sessions):
        record.progress(str(row))
        found.append(row)
    times = [f"{what}, {q}" for what in ("first text", "token", "final text")
             for q in ("median", "95 %")]  # fmt: skip
    columns = {"sessions": "", **dict.fromkeys(times, ".0f"), "RTF, one core": ".4f"}
    n = f"{len(takes)} takes of {args.seconds:g} s; ms from the token's start, its end, the end."
    results.append(Result(title=f"Latency: {name}", note=n, columns=columns, rows=found))
    if args.hour:
        columns = {"an hour": "", "": ".0f"}
        rows = list(hour(model, waves))
        results.append(Result(title=f"An hour: {name}", columns=columns, rows=rows))
    record.publish(args, "streaming", results)


if __name__ == "__main__":
    main()
