"""Digits as sequences of pixels (Cahyawijaya 2021, section 3.3.4 and Table 3.1)."""
