"""Learning rate schedules."""

import logging

from asr.training_config import LinearSchedule, NoamSchedule, TrainingConfig

log = logging.getLogger(__name__)


def rate(step: int, training: TrainingConfig, d_model: int, total_steps: int) -> float:
    """Return the learning rate of a step; steps count from 1.

    "noam" is Vaswani et al. 2017, eq. 3, times a factor.
    """
    schedule = training.schedule
    if isinstance(schedule, NoamSchedule):
        warm = schedule.warmup_steps
        return float(schedule.factor * d_model**-0.5 * min(step**-0.5, step * warm**-1.5))
    if isinstance(schedule, LinearSchedule):
        left = (total_steps - step + 1) / max(1, total_steps - schedule.warmup_steps)
        return schedule.lr * max(0.0, min(step / schedule.warmup_steps, left))
    return schedule.lr


def warn_of_warmup(training: TrainingConfig, total_steps: int) -> None:
    """Warn where the learning rate of a linear schedule still rises when the run ends."""
    schedule = training.schedule
    if isinstance(schedule, LinearSchedule) and schedule.warmup_steps >= max(2, total_steps):
        log.warning(
            "training.schedule.warmup_steps: %d are not over when the run of %d steps ends, so "
            "that the learning rate only rises: set %d or fewer, or train more epochs",
            schedule.warmup_steps, total_steps, max(1, total_steps // 10),
        )  # fmt: skip
