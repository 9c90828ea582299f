"""Metrics for Prometheus; the values of all labels come from fixed sets."""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, disable_created_metrics

from serve.engine.messages import BatchDone

disable_created_metrics()  # type: ignore[no-untyped-call]

_SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300)
_SIZES = (1, 2, 4, 8, 16, 32, 64, 128)


class Metrics:
    """The service's metrics in a registry of their own."""

    def __init__(self) -> None:
        self.registry = own = CollectorRegistry()
        labels = ["route", "method", "status"]
        self.requests = Counter("asr_requests", "Responses.", labels, registry=own)
        self.errors = Counter("asr_errors", "Refusals and failures.", ["kind"], registry=own)
        self.request_seconds = Histogram(
            "asr_request_seconds", "First byte to last.", ["route"], buckets=_SECONDS, registry=own
        )
        self.in_flight = Gauge("asr_requests_in_flight", "Accepted requests.", registry=own)
        self.held_bytes = Gauge("asr_held_bytes", "Bodies held in memory.", registry=own)
        self.waiting_chunks = Gauge("asr_waiting_chunks", "Chunks in the queue.", registry=own)
        self.waiting_seconds = Gauge("asr_waiting_audio_seconds", "Their audio.", registry=own)
        self.wait = Histogram(
            "asr_wait_seconds", "From arrival to decoding.", buckets=_SECONDS, registry=own
        )
        self.batch_chunks = Histogram(
            "asr_batch_chunks", "Chunks of a batch.", buckets=_SIZES, registry=own
        )
        self.audio_seconds = Counter("asr_audio_seconds", "Decoded audio.", registry=own)
        self.decode_seconds = Counter("asr_decode_seconds", "Time of decoding.", registry=own)
        self.real_time_factor = Gauge(
            "asr_real_time_factor", "Time of decoding by audio, of the last batch.", registry=own
        )
        self.engine_restarts = Counter(
            "asr_engine_restarts", "Times that the engine process died.", registry=own
        )

    def count_batch(self, batch: BatchDone) -> None:
        """Count a batch."""
        self.batch_chunks.observe(batch.n_chunks)
        self.audio_seconds.inc(batch.audio_seconds)
        self.decode_seconds.inc(batch.decode_seconds)
        self.real_time_factor.set(batch.decode_seconds / batch.audio_seconds)
