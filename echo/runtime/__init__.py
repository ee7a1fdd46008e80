"""Plans applied to what users train: symbols, executors, hybridized blocks, whole programs (``ECHO=1``)."""
