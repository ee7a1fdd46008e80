"""What MXNet says: its graphs as values of echo, seconds of its operators. With `echo.runtime`, all that imports mxnet."""
