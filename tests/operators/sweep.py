"""All cases, and a sweep over them in processes of their own: ``python -m tests.operators.sweep [PATTERN] [SHARE OF]``."""
