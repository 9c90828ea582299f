"""Disease risk from long diplotype sequences (Cahyawijaya 2021, chapter 5)."""
