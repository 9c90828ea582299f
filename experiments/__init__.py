"""Experiments of Cahyawijaya 2021 that are not speech recognition; not part of the wheel."""
