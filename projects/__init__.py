"""Models of real projects, unmodified, trained with and without echo: ``make projects``.

One file a project (Sockeye 1 and 2, GluonNLP, GluonCV, GluonTS) lists its models as functions that train some steps.
Each runs in a process of its own under each setting (`projects.settings`); `projects.compare` holds the runs against
the one without echo.
"""
