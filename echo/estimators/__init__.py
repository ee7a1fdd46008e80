"""Estimators of a choice's cost: bytes (`footprint`; `planner` replays MXNet's planner) and seconds (`overhead`)."""
