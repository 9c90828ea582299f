"""The study of Cahyawijaya 2021, sections 3.2 and 3.3: the cost of low rank by length and rank."""
