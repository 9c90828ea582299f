"""Learning rate schedules."""

from asr.training_config import LinearSchedule, NoamSchedule, TrainingConfig


def rate(step: int, training: TrainingConfig, d_model: int, total_steps: int) -> float:
    """Return the learning rate of a step, the first being 1.

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
