"""What Prometheus may ask; all labels come from sets that the program knows."""

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    disable_created_metrics,
)

disable_created_metrics()

_SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300)
_SIZES = (1, 2, 4, 8, 16, 32, 64, 128)


class Metrics:
    """The service's figures in a registry of their own."""

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()
        self.requests = Counter(
            "asr_requests", "Answers.", ["route", "method", "status"], registry=registry
        )
        self.errors = Counter("asr_errors", "Refusals and failures.", ["kind"], registry=registry)
        self.request_seconds = Histogram(
            "asr_request_seconds", "From first byte to last.", ["route"], buckets=_SECONDS,
            registry=registry,
        )  # fmt: skip
        self.in_flight = Gauge("asr_requests_in_flight", "Accepted requests.", registry=registry)
        self.held_bytes = Gauge("asr_held_bytes", "Bodies held in memory.", registry=registry)
        self.waiting_chunks = Gauge(
            "asr_queue_chunks", "Chunks of recordings that wait.", registry=registry
        )
        self.waiting_seconds = Gauge("asr_queue_audio_seconds", "Audio in them.", registry=registry)
        self.wait = Histogram(
            "asr_wait_seconds", "From arrival to decoding.", buckets=_SECONDS, registry=registry
        )
        self.batch_chunks = Histogram(
            "asr_batch_chunks", "Chunks decoded together.", buckets=_SIZES, registry=registry
        )
        self.audio_seconds = Counter("asr_audio_seconds", "Audio decoded.", registry=registry)
        self.decode_seconds = Counter(
            "asr_decode_seconds", "Time it took; their ratio is the real-time factor.",
            registry=registry,
        )  # fmt: skip
        self.real_time_factor = Gauge(
            "asr_real_time_factor", "Of the last batch.", registry=registry
        )
        self.worker_restarts = Counter(
            "asr_worker_restarts", "Deaths of the decoding process.", registry=registry
        )

    def batch(self, n_chunks: int, seconds: float, work: float) -> None:
        """Count a batch."""
        self.batch_chunks.observe(n_chunks)
        self.audio_seconds.inc(seconds)
        self.decode_seconds.inc(work)
        self.real_time_factor.set(work / seconds)
