"""What a choice costs: bytes (`footprint`, and `planner`, which replays MXNet's own) and seconds (`overhead`)."""
