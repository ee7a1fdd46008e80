"""MXNet's graphs as values, and seconds of its operators.

Only this room, `echo.verify`, `echo.runtime` and `echo.instrument` import mxnet.
"""
