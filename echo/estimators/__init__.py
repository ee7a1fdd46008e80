"""Estimators of bytes (`footprint`; `storage_planner` is MXNet's planner) and seconds (`cost_model`)."""
