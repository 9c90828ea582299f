"""Waveforms and features: recordings, segmentation, features, augmentation."""
