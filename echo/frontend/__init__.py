"""MXNet's graphs as values, and seconds of its operators. Only this room and `echo.runtime` import mxnet."""
