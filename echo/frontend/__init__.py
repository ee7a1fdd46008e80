"""What MXNet says: its graphs as values, seconds of its operators. With `echo.runtime`, all that imports mxnet."""
