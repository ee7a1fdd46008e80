"""From a request to a plan: one that the user gave, one from the disk, or a new one from the pipeline."""
